"use strict";
/* Tables and figures.  Text is set as text, never as markup; a cell is touched only when it changed. */

function write(element, text) { if (element.textContent !== text) element.textContent = text; }

function make(kind, className = "", text = "") {
  const element = document.createElement(kind);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/* Rows by key, in order: [key, [[text, class, title], …]]. */
class Table {
  constructor(element) { this.body = element.tBodies[0]; this.empty = element.parentElement.querySelector(".empty"); this.rows = new Map(); }

  fill(rows, each = null) {
    const kept = new Set(rows.map(row => row[0]));
    for (const [key, element] of this.rows) if (!kept.has(key)) { element.remove(); this.rows.delete(key); }
    let before = null;
    for (const [key, cells] of rows) {
      let element = this.rows.get(key);
      if (!element) {
        element = make("tr");
        for (const [, className] of cells) element.append(make("td", className));
        element.dataset.key = key;
        element.told = [];
        this.rows.set(key, element);
      }
      cells.forEach(([text, , title], index) => {
        /* What was written is kept here: asking the page for it takes longer than a frame has. */
        const told = element.told[index] ??= {text: "", title: ""};
        if (told.text !== text) element.cells[index].textContent = told.text = text;
        if (title !== undefined && told.title !== title) element.cells[index].title = told.title = title;
      });
      const place = before ? before.nextElementSibling : this.body.firstElementChild;
      if (place !== element) this.body.insertBefore(element, place);
      before = element;
      if (each) each(element, key);
    }
    if (this.empty) this.empty.hidden = rows.length > 0;
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

/* What the page says of one group, beside the picture. */
class GroupView {
  constructor(picture, choose) {
    this.picture = picture;
    this.figures = new Figures(document.getElementById("figures"));
    this.members = new Table(document.getElementById("members"));
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
    /* A report is about its run; its one group has no name of interest. */
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
      ["Lag", measured ? brief(group.lag.last) : null, worst ? `most ${brief(worst[2])} (${shown(worst[0], 40)}-${worst[1]})` : ""],
      ["Read / s", measured ? brief(group.read.last) : null, ""],
      ["Written / s", measured ? brief(group.written.last) : null, this.caughtUp(group)],
    ]);
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
    this.members.fill(found.map(member => {
      const share = this.shares.get(member.number);
      let text = this.texts.get(member.number);
      if (text === undefined) this.texts.set(member.number, text = ranges(share, group.topics.size > 1));
      return [String(member.number), [
        ["", "colour"],
        [shown(member.instance ?? member.id), "cut mono", member.instance ? `static, member id ${shown(member.id)}` : shown(member.id)],
        [shown(member.client), "cut", shown(member.client)],
        [shown(member.host), "cut", shown(member.host)],
        [member.generation === null || member.generation === undefined ? "–" : String(member.generation), "n"],
        [figure(share?.count ?? 0), "n"],
        [member.lag === null || member.lag === undefined ? "–" : brief(member.lag), "n"],
        [text.slice(0, 400), "cut mono", text.slice(0, 1500)],
      ]];
    }), (element, key) => {
      let swatch = element.cells[0].firstElementChild;
      if (!swatch) element.cells[0].append(swatch = make("i", "swatch"));
      const colour = this.picture.colour(+key);
      if (swatch.dataset.colour !== colour) { swatch.dataset.colour = colour; swatch.style.background = colour; }
      const selected = String(this.picture.highlight === +key);
      if (element.getAttribute("aria-selected") !== selected) element.setAttribute("aria-selected", selected);
    });
  }

  rebalanceRows(group) {
    const all = [...group.rebalances.values()].reverse();
    write(document.getElementById("rebalance-count"), all.length ? figure(all.length) : "");
    this.rebalances.fill(all.slice(0, 200).map(one => {
      const why = one.reasons.map(text => shown(text)).join("; ") || "not told";
      return [String(one.id), [
        [this.picture.clock(one.began, true), "time"],
        [one.ended === null ? "under way" : one.ended === one.began ? "–" : seconds(one.ended - one.began), "n"],
        [figure(one.moved), "n"],
        [why, "wrap", why],
      ]];
    }));
  }

  /* A table that a report brings along. */
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
