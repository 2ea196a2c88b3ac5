"use strict";
/* The source of messages, the actions of the buttons, and the times of drawing. */

(() => {
  const by = id => document.getElementById(id);
  const plots = by("plots"), tip = by("tip"), cross = by("cross");
  const picture = new Picture(plots);
  const SPANS = [[60, "1 min"], [300, "5 min"], [900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "1 day"]];
  const LEAST_SPAN = 2;
  let model = null, group = null, live = true, paused = false, ended = false, lost = false, span = 300, everything = false, waitingFrame = false, pointer = null;

  const view = new GroupView(picture, {
    member(row) { if (row) { const number = +row.dataset.key; picture.highlight = picture.highlight === number ? null : number; refresh(true); } },
    rebalance(row) {
      const one = row && group.rebalances.get(+row.dataset.key);
      if (!one) return;
      const length = Math.max(20, 4 * ((one.ended ?? model.now) - one.began)), middle = (one.began + (one.ended ?? model.now)) / 2;
      look(middle - length / 2, middle + length / 2);
      plots.scrollIntoView({block: "nearest"});
    },
  });

  /* -- drawing ---------------------------------------------------------------------------------------------------- */

  let tables = false;
  function refresh(withTables = false) {
    tables = tables || withTables;
    if (waitingFrame) return;
    waitingFrame = true;
    requestAnimationFrame(() => { waitingFrame = false; frame(); });
  }

  function frame() {
    if (!model || model.now === null) return;
    if (group === null || !model.groups.has(group.id)) choose(model.groups.keys().next().value);
    by("waiting").hidden = group !== null;
    by("main").hidden = group === null;
    if (group === null) { write(by("waiting"), "There is no consumer group yet."); return status(); }
    if (!paused) follow();
    picture.draw();
    status();
    values();
    /* The tables are drawn in a separate frame, because both together may take longer than one frame. */
    if (tables) { tables = false; requestAnimationFrame(showTables); }
    else document.body.dataset.drawn = String(model.received);
  }

  function showTables() {
    if (group === null) return;
    view.show(group, model, by("filter").value.trim());
    navigation();
    topics();
    document.body.dataset.drawn = String(model.received);
  }

  function follow() {
    const length = everything ? Math.max(LEAST_SPAN, model.now - model.began) : span;
    picture.to = model.now;
    picture.from = model.now - length;
    /* Shortly after the watch began, the data does not fill the span, so begin the picture on the left. */
    if (!everything && picture.from < model.began) { picture.from = model.began; picture.to = model.began + Math.max(LEAST_SPAN, Math.min(length, Math.max(model.now - model.began, 30))); }
  }

  function status() {
    const element = by("status"), trouble = model.trouble;
    const [kind, text] = !live ? ["still", "recording"]
      : lost ? ["lost", "connection lost"]
      : ended ? ["lost", "the watch has ended"]
      : paused ? ["paused", `paused at ${picture.clock(picture.to, true)}`]
      : trouble ? ["lost", "the cluster does not answer"]
      : ["live", "live"];
    element.dataset.kind = kind;
    element.title = trouble && kind === "lost" ? shown(trouble) : "";
    write(element.lastElementChild, text);
    by("legend-blind").hidden = model.blind.length === 0;
    const button = by("pause");
    button.hidden = !live;
    write(button, paused ? "Resume" : "Pause");
    button.setAttribute("aria-pressed", String(paused));
  }

  function navigation() {
    const box = by("groups"), all = [...model.groups.values()].sort((a, b) => a.id < b.id ? -1 : 1);
    box.hidden = all.length < 2;
    if (box.hidden) return;
    const kept = new Map([...box.children].map(one => [one.dataset.group, one]));
    all.forEach((one, index) => {
      let button = kept.get(one.id);
      kept.delete(one.id);
      if (!button) {
        button = make("button");
        button.type = "button"; button.dataset.group = one.id; button.title = shown(one.id);
        button.append(make("i", "dot"), make("span", "name", shown(one.id, 80)), make("span"), make("span", "more"));
        button.addEventListener("click", () => { choose(one.id); refresh(true); });
      }
      button.children[0].dataset.kind = one.kind;
      const lag = one.lag.at.length ? ` · lag ${one.lowerBound}${brief(one.lag.last)}` : "";
      write(button.children[3], one.gone ? "gone" : one.info.error ? (one.info.state === "Dead" ? "no such group" : "not readable") : (one.kind === "good" ? "" : shown(one.info.state) + " · ") + `${figure(one.present.length)} ${one.present.length === 1 ? "member" : "members"}${lag}`);
      button.setAttribute("aria-current", String(one === group));
      if (box.children[index] !== button) box.insertBefore(button, box.children[index] ?? null);
    });
    for (const button of kept.values()) button.remove();
  }

  function topics() {
    const names = [...group.topics.keys()].sort(), select = by("topic");
    by("topic-label").hidden = names.length < 2;
    if (picture.topic !== null && !group.topics.has(picture.topic)) picture.topic = null;
    const key = JSON.stringify(names);
    if (select.dataset.key === key) return;
    select.dataset.key = key;
    const all = make("option", "", "all");
    all.value = "-1";
    select.replaceChildren(all, ...names.map((name, index) => { const option = make("option", "", shown(name, 60)); option.value = String(index); return option; }));
    select.value = String(names.indexOf(picture.topic));
  }

  function choose(id) {
    const next = model.groups.get(id) ?? null;
    if (next === group) return;
    group = picture.group = next;
    picture.topic = picture.highlight = null;
    by("scroller").scrollTop = 0;
    tables = true;
  }

  /* -- the view --------------------------------------------------------------------------------------------------- */

  function look(from, to) {
    const length = Math.min(Math.max(to - from, LEAST_SPAN), Math.max(60, (model.now - model.began) * 1.5));
    let left = (from + to) / 2 - length / 2;
    left = Math.min(Math.max(left, model.began - length * .5), model.now - length * .5);
    picture.from = left; picture.to = left + length;
    paused = true;
    refresh();
  }

  function zoom(factor, x = picture.left + picture.width) {
    if (!model || !group) return;
    const at = picture.time(Math.min(Math.max(x, picture.left), picture.left + picture.width));
    if (!paused && live && x >= picture.left + picture.width) {
      /* The right edge is the current time, so change only the span. */
      everything = false;
      span = Math.min(Math.max((picture.to - picture.from) * factor, LEAST_SPAN), 604800);
      spanShown();
      return refresh();
    }
    look(at - (at - picture.from) * factor, at + (picture.to - at) * factor);
  }

  function pause(value) { paused = value; refresh(true); }
  function spanShown() { const known = SPANS.find(one => one[0] === span); by("span").value = everything ? "all" : known ? String(span) : ""; }

  for (const [value, text] of [...SPANS.map(([value, text]) => [String(value), text]), ["all", "everything"]]) {
    const option = make("option", "", text);
    option.value = value;
    by("span").append(option);
  }
  by("span").addEventListener("change", event => {
    everything = event.target.value === "all";
    if (!everything) span = +event.target.value;
    if (live) return pause(false);
    if (everything) all(); else look(picture.to - span, picture.to);
  });
  by("in").addEventListener("click", () => zoom(.5, live && !paused ? undefined : picture.left + picture.width / 2));
  by("out").addEventListener("click", () => zoom(2, live && !paused ? undefined : picture.left + picture.width / 2));
  by("pause").addEventListener("click", () => pause(!paused));
  by("topic").addEventListener("change", event => { picture.topic = [...group.topics.keys()].sort()[+event.target.value] ?? null; refresh(true); });
  by("order").addEventListener("change", event => { picture.order = event.target.value; refresh(); });
  by("rows").addEventListener("change", event => { picture.rowMode = event.target.value; by("scroller").scrollTop = 0; refresh(); });
  by("filter").addEventListener("input", () => refresh(true));
  by("scroller").addEventListener("scroll", () => refresh());
  /* Hide the tooltip, because the point that it describes moves, and a tooltip outside of the window would make the page wider. */
  new ResizeObserver(() => { pointer = null; tip.hidden = true; cross.style.display = "none"; refresh(); }).observe(plots);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { picture.theme(); refresh(true); });

  function all() { everything = true; picture.from = model.began; picture.to = Math.max(model.now, model.began + LEAST_SPAN); spanShown(); refresh(); }

  plots.addEventListener("keydown", event => {
    const part = (picture.to - picture.from) / 5;
    const act = {ArrowLeft: () => look(picture.from - part, picture.to - part), ArrowRight: () => look(picture.from + part, picture.to + part),
      "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), " ": () => live && pause(!paused), 0: all, Escape: () => { picture.highlight = null; refresh(true); }}[event.key];
    if (!act || event.ctrlKey || event.metaKey || !group) return;
    event.preventDefault();
    act();
  });
  plots.addEventListener("wheel", event => {
    if (!group || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 120), event.clientX - plots.getBoundingClientRect().left);
  }, {passive: false});

  /* One pointer moves the picture, two zoom it. */
  const held = new Map();
  let grip = null;
  function gripNow() {
    const box = plots.getBoundingClientRect(), xs = [...held.values()].map(one => one.clientX - box.left);
    grip = {from: picture.from, to: picture.to, xs, times: xs.map(x => picture.time(x)), moved: grip?.moved ?? false};
  }
  plots.addEventListener("pointerdown", event => { if (event.button === 0 && group) { held.set(event.pointerId, event); grip = null; gripNow(); } });
  plots.addEventListener("pointermove", event => {
    const box = plots.getBoundingClientRect();
    pointer = {x: event.clientX - box.left, y: event.clientY - box.top, clientX: event.clientX, clientY: event.clientY};
    if (held.has(event.pointerId)) {
      held.set(event.pointerId, event);
      const xs = [...held.values()].map(one => one.clientX - box.left), scale = (grip.to - grip.from) / picture.width;
      if (xs.length === 1 && (grip.moved || Math.abs(xs[0] - grip.xs[0]) > 4)) {
        if (!grip.moved) { grip.moved = true; plots.setPointerCapture(event.pointerId); plots.classList.add("moving"); }
        const shift = (grip.xs[0] - xs[0]) * scale;
        look(grip.from + shift, grip.to + shift);
      } else if (xs.length === 2 && Math.abs(xs[0] - xs[1]) > 10) {
        const rate = (grip.times[1] - grip.times[0]) / (xs[1] - xs[0]), from = grip.times[0] - (xs[0] - picture.left) * rate;
        if (rate > 0) look(from, from + rate * picture.width);
      }
    }
    values();
    hint();
  });
  function release(event) { if (held.delete(event.pointerId)) { plots.classList.remove("moving"); grip = null; if (held.size) gripNow(); } }
  plots.addEventListener("pointerup", release);
  plots.addEventListener("pointercancel", release);
  plots.addEventListener("pointerleave", () => { pointer = null; tip.hidden = true; cross.style.display = "none"; values(); });
  plots.addEventListener("dblclick", event => zoom(.4, event.clientX - plots.getBoundingClientRect().left));

  /* -- the tip ---------------------------------------------------------------------------------------------------- */

  function hint() {
    const found = pointer && picture.at(pointer.x, pointer.y);
    cross.style.display = found ? "block" : "none";
    if (!found) { tip.hidden = true; return; }
    cross.style.transform = `translateX(${pointer.x}px)`;
    const lines = [];
    if (found.row) {
      const [topic, number] = found.row, member = group.members.get(found.owner);
      lines.push(["b", `${shown(topic.name, 80)}-${number}`]);
      lines.push(["", found.owner === UNOWNED ? "no owner" : shown(member?.instance ?? member?.id ?? `member ${found.owner}`, 120)]);
      if (member) lines.push(["muted", `client ${shown(member.client, 80)}, host ${shown(member.host, 80)}`]);
      lines.push(["muted", `${picture.clock(found.since, true)} to ${found.until === null ? "now" : picture.clock(found.until, true)}, ${seconds((found.until ?? model.now) - found.since)}`]);
    }
    if (found.rebalance) {
      const one = found.rebalance;
      lines.push(["b", "Rebalance" + (one.ended === null ? " under way" : one.ended > one.began ? ` of ${seconds(one.ended - one.began)}` : "")]);
      lines.push(["", one.reasons.map(text => shown(text)).join("; ") || "reason unknown"]);
      if (one.moved) lines.push(["muted", `${figure(one.moved)} partitions moved`]);
    }
    if (found.blind) lines.push(["b", "The cluster did not answer"], ["", shown(found.blind[2])]);
    if (!lines.length) lines.push(["muted", picture.clock(found.at, true)]);
    tip.replaceChildren(...lines.map(([kind, text]) => { const line = make("div", kind === "muted" ? "muted" : ""); line.append(kind === "b" ? make("b", "", text) : text); return line; }));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(pointer.clientX + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = Math.max(6, pointer.clientY + 16 + box.height > innerHeight ? pointer.clientY - box.height - 10 : pointer.clientY + 16) + "px";
  }

  function values() {
    if (!group || !picture.lines) return;
    const at = pointer && pointer.x >= picture.left && pointer.x <= picture.left + picture.width ? Math.min(picture.time(pointer.x), model.now) : Math.min(picture.to, model.now);
    const told = name => picture.lines[name].map(line => line.value(at));
    const [unowned] = told("unowned"), [lag] = told("lag"), [written, read] = told("pace");
    write(by("unowned-value"), figure(unowned));
    write(by("lag-value"), `${figure(lag)} records`);
    write(by("pace-read"), brief(read));
    write(by("pace-written"), brief(written));
  }

  /* -- messages --------------------------------------------------------------------------------------------------- */

  function start({meta, messages, live: going = true}) {
    const chosen = group?.id;
    live = going;
    model = picture.model = new Model(meta);
    group = picture.group = null;
    picture.listKey = view.sharesKey = "";
    ended = lost = false;
    for (const message of messages) model.apply(message);
    write(by("title"), meta.table ? "" : shown(meta.title));
    write(by("subtitle"), meta.table ? "" : shown(meta.subtitle, 600));
    document.title = `${shown(meta.title, 80)} – consumer-coord watch`;
    view.report(meta.table);
    if (chosen !== undefined && model.groups.has(chosen)) choose(chosen);
    if (!live && model.now !== null) { paused = true; all(); }
    refresh(true);
  }

  function connect() {
    const source = new EventSource("events");
    source.addEventListener("start", event => start(JSON.parse(event.data)));
    source.addEventListener("end", () => { ended = true; source.close(); refresh(true); });
    source.onmessage = event => { if (model) { model.apply(JSON.parse(event.data)); lost = false; refresh(!paused); } };
    source.onopen = () => { lost = false; };
    source.onerror = () => { lost = !ended; if (model) status(); else write(by("waiting"), "No connection to consumer-coord watch."); };
  }

  const recorded = by("recording").textContent.trim();
  if (recorded) {
    start({...JSON.parse(recorded), live: false});
  } else {
    connect();
  }
  spanShown();
  /* For tests, and for use in the console. */
  window.watched = {picture, get model() { return model; }};
})();
