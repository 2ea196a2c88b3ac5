"use strict";
/* Tables and figures.  Text is set as text, never as markup; a cell is updated only after a change. */

function write(element, text) { if (element.textContent !== text) element.textContent = text; }

function make(kind, className = "", text = "") {
  const element = document.createElement(kind);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/* Number of rows to fill in the first frame, beginning with the first visible row, and in each later frame. */
const AT_ONCE = 24, A_FRAME = 40;
/* A table with more rows than this is a long table. */
const MANY = 60;

/* A table of rows [key, function that returns the cells], in order; a cell is [text, class, title].  A browser takes longer than one frame to
   lay out the cells of hundreds of rows.  So visible rows get their cells at once, and other rows in later frames. */
class Table {
  constructor(element, each = null) {
    this.body = element.tBodies[0]; this.empty = element.parentElement.querySelector(".empty"); this.each = each;
    this.rows = new Map(); this.order = []; this.next = 0; this.left = 0; this.waiting = false; this.part = 0;
    const box = element.parentElement;
    box.addEventListener("scroll", () => { this.part = box.scrollTop / box.scrollHeight; }, {passive: true});
  }

  fill(rows) {
    const kept = new Set(rows.map(row => row[0]));
    for (const [key, row] of this.rows) if (!kept.has(key)) { row.element.remove(); this.rows.delete(key); }
    let before = null;
    this.order = rows.map(([key, cells]) => {
      let row = this.rows.get(key);
      if (!row) {
        row = {key, element: make("tr"), cells: [], texts: [], titles: []};
        row.element.dataset.key = key;
        this.rows.set(key, row);
      }
      row.make = cells;
      const place = before ? before.nextElementSibling : this.body.firstElementChild;
      if (place !== row.element) this.body.insertBefore(row.element, place);
      before = row.element;
      return row;
    });
    if (this.empty) this.empty.hidden = rows.length > 0;
    const first = Math.floor(this.part * rows.length);
    for (const row of this.order.slice(first, first + AT_ONCE)) this.cells(row);
    if (rows.length <= AT_ONCE) { this.left = 0; return; }
    /* Continue where the last filling stopped, so that the last rows are filled even if snapshots are frequent. */
    this.left = rows.length;
    this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (let count = Math.min(A_FRAME, this.left); count > 0; count--, this.left--) {
        this.next = this.next < this.order.length ? this.next : 0;
        this.cells(this.order[this.next++]);
      }
      if (this.left > 0) this.later();
    });
  }

  cells(row) {
    row.make().forEach(([text, className, title], index) => {
      let cell = row.cells[index];
      if (!cell) row.element.append(cell = row.cells[index] = make("td", className));
      if (row.texts[index] !== text) { row.texts[index] = text; if (text || cell.firstChild) cell.textContent = text; }
      if (title !== undefined && row.titles[index] !== title) row.titles[index] = cell.title = title;
    });
    if (this.each) this.each(row.element, row.key);
  }
}

function ranges(share, several) {
  if (!share) return "";
  const texts = [];
  for (const [topic, list] of share.topics) {
    const numbers = list.slice(0, 60).map(([first, last]) => first === last ? `${first}` : `${first}-${last}`).join(" ") + (list.length > 60 ? " …" : "");
    texts.push(several ? `${shown(topic)}: ${numbers}` : numbers);
  }
  return texts.join("   ");
}

class Figures {
  constructor(element) { this.element = element; this.items = new Map(); }

  set(items) {
    for (const [name, value, more, bad] of items) {
      let item = this.items.get(name);
      if (!item) {
        const box = make("div"), value_ = make("dd");
        item = {value: make("span"), more: make("small")};
        value_.append(item.value, " ", item.more);
        box.append(make("dt", "", name), value_);
        this.element.append(box);
        this.items.set(name, item);
        item.box = box;
      }
      write(item.value, value); write(item.more, more ?? "");
      item.value.className = bad ? "bad" : "";
      item.box.hidden = value === null;
    }
  }
}

/* The texts of the page about one group, next to the picture. */
class GroupView {
  constructor(picture, choose) {
    this.picture = picture;
    this.figures = new Figures(document.getElementById("figures"));
    this.members = new Table(document.getElementById("members"), (element, key) => this.swatch(element, +key));
    this.rebalances = new Table(document.getElementById("rebalances"));
    this.shares = new Map(); this.sharesKey = ""; this.texts = new Map();
    document.querySelector("#members tbody").addEventListener("click", event => choose.member(event.target.closest("tr")));
    document.querySelector("#rebalances tbody").addEventListener("click", event => choose.rebalance(event.target.closest("tr")));
  }

  show(group, model, filter) {
    const key = group.id + "\n" + group.version;
    if (key !== this.sharesKey) { this.sharesKey = key; this.shares = group.shares(); this.texts.clear(); }
    this.head(group, model);
    this.memberRows(group, filter);
    this.rebalanceRows(group);
  }

  head(group, model) {
    const info = group.info, state = document.getElementById("state"), error = document.getElementById("error");
    /* A report describes its run; the name of its only group does not matter. */
    const report = Boolean(model.meta.table);
    write(document.getElementById("group"), report ? shown(model.meta.title) : shown(group.id) || "(a group without a name)");
    write(state, group.gone ? "Gone" : info.error && info.state === "Dead" ? "No such group" : shown(info.state) || "Unknown");
    state.dataset.kind = group.kind;
    const facts = [
      info.type ? `${shown(info.type).toLowerCase()} protocol` : "",
      info.assignor ? `assignor ${shown(info.assignor)}` : "",
      info.epoch === null || info.epoch === undefined ? "" : `epoch ${info.epoch}`,
      info.coordinator ? `coordinator ${shown(info.coordinator)}` : "",
    ];
    write(document.getElementById("facts"), report ? shown(model.meta.subtitle, 600) : facts.filter(Boolean).join(" · "));
    error.hidden = !info.error;
    write(error, shown(info.error, 600));
    const unowned = group.unowned.last ?? 0, measured = group.lag.at.length > 0;
    let done = 0;
    for (const one of group.rebalances.values()) if (one.ended !== null) done++;
    const worst = group.behind[0];
    this.figures.set([
      ["Members", figure(group.present.length)],
      ["Partitions", figure(group.partitionCount), group.topics.size > 1 ? `of ${group.topics.size} topics` : ""],
      ["Unowned", figure(unowned), `${brief(group.unownedSeconds)} partition-s so far`, unowned > 0 && !group.rebalancing],
      ["Rebalances", figure(done), group.rebalancing ? "one under way" : ""],
      ["Lag", measured ? group.lowerBound + brief(group.lag.last) : null, [this.oldest(group), group.unknown ? `unknown in ${figure(group.unknown)} of the partitions` : worst ? `most ${brief(worst[2])} (${shown(worst[0], 40)}-${worst[1]})` : ""].filter(Boolean).join(", ")],
      ["Read / s", measured ? brief(group.read.last) : null, ""],
      ["Written / s", measured ? brief(group.written.last) : null, this.caughtUp(group)],
    ]);
  }

  oldest(group) {
    if (group.lagSeconds === undefined) return "";
    return group.lagSeconds === null ? "age unknown" : `${seconds(group.lagSeconds)} old`;
  }

  caughtUp(group) {
    const gain = (group.read.last ?? 0) - (group.written.last ?? 0);
    return group.lag.last > 0 && gain > 0 ? `caught up in ${seconds(group.lag.last / gain)}` : "";
  }

  memberRows(group, filter) {
    const wanted = filter.toLowerCase();
    const all = group.present;
    const found = all.filter(member => !wanted || [member.id, member.client, member.host, member.instance].some(text => String(text ?? "").toLowerCase().includes(wanted)));
    found.sort((a, b) => a.number - b.number);
    write(document.getElementById("member-count"), found.length === all.length ? figure(all.length) : `${figure(found.length)} of ${figure(all.length)}`);
    const several = group.topics.size > 1;
    /* Invisible rows of a long table are not laid out. */
    document.getElementById("members").classList.toggle("many", found.length > MANY);
    this.members.fill(found.map(member => [String(member.number), () => {
      const share = this.shares.get(member.number);
      let text = this.texts.get(member.number);
      if (text === undefined) this.texts.set(member.number, text = ranges(share, several));
      return [
        ["", "colour"],
        [shown(member.instance ?? member.id), "cut mono", member.instance ? `static, member id ${shown(member.id)}` : shown(member.id)],
        [shown(member.client), "cut", shown(member.client)],
        [shown(member.host), "cut", shown(member.host)],
        [member.generation === null || member.generation === undefined ? "–" : String(member.generation), "n"],
        [figure(share?.count ?? 0), "n"],
        [member.lag === null || member.lag === undefined ? "–" : brief(member.lag), "n"],
        [text.slice(0, 400), "cut mono", text.slice(0, 1500)],
      ];
    }]));
  }

  swatch(element, number) {
    let swatch = element.cells[0].firstElementChild;
    if (!swatch) element.cells[0].append(swatch = make("i", "swatch"));
    const colour = this.picture.colour(number), selected = String(this.picture.highlight === number);
    if (swatch.dataset.colour !== colour) { swatch.dataset.colour = colour; swatch.style.background = colour; }
    if (element.getAttribute("aria-selected") !== selected) element.setAttribute("aria-selected", selected);
  }

  rebalanceRows(group) {
    const all = [...group.rebalances.values()].reverse();
    write(document.getElementById("rebalance-count"), all.length ? figure(all.length) : "");
    this.rebalances.fill(all.slice(0, 200).map(one => [String(one.id), () => {
      const why = one.reasons.map(text => shown(text)).join("; ") || "unknown";
      return [
        [this.picture.clock(one.began, true), "time"],
        [one.ended === null ? "under way" : one.ended === one.began ? "–" : seconds(one.ended - one.began), "n"],
        [figure(one.moved), "n"],
        [why, "wrap", why],
      ];
    }]));
  }

  /* A table that is part of a report. */
  report(table) {
    const box = document.getElementById("report");
    box.hidden = !table;
    if (!table) return;
    const head = make("tr");
    table.columns.forEach((text, index) => head.append(make("th", index ? "n" : "", shown(text))));
    box.querySelector("thead").replaceChildren(head);
    box.querySelector("tbody").replaceChildren(...table.rows.map(row => {
      const element = make("tr");
      row.forEach((text, index) => element.append(make("td", index ? "n" : "", shown(text))));
      return element;
    }));
  }
}
