"use strict";
/* The picture: ownership, and below it lines that share its time axis. */

const CHART_HEIGHT = 62;
const STRIP = 20;
const TALL_ROW = 16;
const HUES = [250, 55, 150, 330, 95, 200, 20, 290, 125, 230, 355, 75];
const STEPS = [.1, .2, .5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
const NUMBER = new Intl.NumberFormat("en", {maximumFractionDigits: 1});
const COMPACT = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1});

function figure(value) { return value === null || value === undefined ? "–" : NUMBER.format(Math.abs(value) < 100 ? value : Math.round(value)); }
function brief(value) { return value === null || value === undefined ? "–" : Math.abs(value) < 10000 ? figure(value) : COMPACT.format(value); }
function seconds(value) {
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

/* Set a style only if its value changes, because a browser lays out the page again even for the same value. */
function resize(element, height) { const text = height + "px"; if (element.style.height !== text) element.style.height = text; }

class Picture {
  constructor(root) {
    this.root = root;
    this.canvas = {};
    for (const name of ["owners", "axis", "unowned", "lag", "pace"]) this.canvas[name] = root.querySelector("#" + name);
    this.scroller = root.querySelector("#scroller");
    this.spacer = root.querySelector("#spacer");
    this.model = null; this.group = null;
    this.topic = null; this.order = "partition"; this.rowMode = "fit"; this.highlight = null;
    this.from = 0; this.to = 1;
    this.list = []; this.listKey = "";
    this.colours = new Map();
    this.shades = new Map();
    this.theme();
    this.measure();
  }

  theme() {
    const style = getComputedStyle(document.documentElement);
    this.ink = Object.fromEntries(["text", "muted", "line", "faint", "surface", "plot", "unowned", "unowned-line", "band", "mark",
      "blind", "read", "written", "bad", "owner-light", "owner-chroma"].map(name => [name, style.getPropertyValue("--" + name).trim()]));
    this.colours.clear();
    this.shades.clear();
  }

  colour(owner) {
    let found = this.colours.get(owner);
    if (!found) {
      const light = +this.ink["owner-light"], chroma = +this.ink["owner-chroma"];
      const hue = owner < HUES.length ? HUES[owner] : (owner * 137.508) % 360;
      const shift = owner < HUES.length ? [0, .035, -.045][owner % 3] : [-.09, 0, .07, .035, -.05][owner % 5];
      this.colours.set(owner, found = `oklch(${(light + shift).toFixed(3)} ${chroma} ${hue.toFixed(0)})`);
    }
    return found;
  }

  /* Read the sizes once per frame, because after a change of a canvas the browser lays out the page again for each reading. */
  measure() {
    this.whole = this.root.clientWidth;
    this.narrow = this.whole < 640;
    this.left = this.narrow ? 46 : 112;
    this.right = this.narrow ? 108 : 124;
    this.width = Math.max(40, this.whole - this.left - this.right);
  }
  x(at) { return this.left + (at - this.from) / (this.to - this.from) * this.width; }
  time(x) { return this.from + (x - this.left) / this.width * (this.to - this.from); }

  prepare(name, height) {
    const element = this.canvas[name], scale = window.devicePixelRatio || 1, width = this.whole;
    const pixels = [Math.round(width * scale), Math.round(height * scale)];
    if (element.width !== pixels[0] || element.height !== pixels[1]) { [element.width, element.height] = pixels; resize(element, height); }
    const pen = element.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11.5px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
    pen.textBaseline = "middle";
    return pen;
  }

  /* The partitions in the order of their rows; computed again after a change. */
  rows() {
    const key = [this.group.id, this.topic, this.order, this.order === "owner" ? this.group.version : [...this.group.topics.values()].map(one => one.rows.length).join()].join("\n");
    if (key !== this.listKey) {
      this.listKey = key;
      this.list = [...this.group.partitions(this.topic)];
      if (this.order === "owner") {
        const place = ([, , row]) => row.last === null || row.last === UNOWNED ? Infinity : row.last;
        this.list = this.list.map((row, index) => [row, place(row), index]).sort((a, b) => a[1] === b[1] ? a[2] - b[2] : a[1] < b[1] ? -1 : 1).map(one => one[0]);
      }
    }
    return this.list;
  }

  draw() {
    if (!this.group || !(this.to > this.from)) return;
    this.measure();
    const rows = this.rows(), most = this.narrow ? 300 : 400;
    this.rowHeight = this.rowMode === "tall" ? TALL_ROW : Math.min(22, most / Math.max(1, rows.length));
    const whole = rows.length * this.rowHeight;
    this.plotHeight = Math.max(this.rowMode === "tall" ? Math.min(whole, most) : whole, 24);
    resize(this.scroller, this.plotHeight + STRIP);
    resize(this.spacer, Math.max(whole, this.plotHeight) + STRIP);
    const overflow = whole > this.plotHeight + 1 ? "auto" : "hidden";
    if (this.scroller.style.overflowY !== overflow) this.scroller.style.overflowY = overflow;
    this.offset = this.scroller.scrollTop;
    this.drawOwners(rows);
    this.drawAxis();
    const lines = this.topic === null ? this.group : this.group.topics.get(this.topic) ?? this.group;
    this.lines = {unowned: [this.group.unowned], lag: [lines.lag], pace: [lines.written, lines.read]};
    const steady = this.ink;
    this.drawChart("unowned", [[this.group.unowned, steady["unowned-line"], true]], 40);
    this.drawChart("lag", [[lines.lag, steady.text, true]], CHART_HEIGHT);
    this.drawChart("pace", [[lines.written, steady.written, false], [lines.read, steady.read, false]], CHART_HEIGHT);
  }

  drawOwners(rows) {
    const pen = this.prepare("owners", this.plotHeight + STRIP), scale = window.devicePixelRatio || 1;
    const {left, width, rowHeight, plotHeight, offset, from, to} = this;
    pen.fillStyle = this.ink.plot;
    pen.fillRect(left, STRIP, width, plotHeight);
    pen.save();
    pen.beginPath(); pen.rect(left, STRIP, width, plotHeight); pen.clip();
    this.drawGrid(pen, STRIP, plotHeight);
    if (rowHeight * scale >= 1) {
      const gap = rowHeight >= 5 ? 1 : rowHeight >= 3 ? .5 : 0, last = Math.min(rows.length, Math.ceil((offset + plotHeight) / rowHeight));
      for (let index = Math.floor(offset / rowHeight); index < last; index++)
        this.drawRow(pen, rows[index][2], STRIP + index * rowHeight - offset, rowHeight - gap);
    } else {
      /* The rows are thinner than a screen pixel, so draw one row for each pixel. */
      this.drawPixels(pen, rows, Math.round(plotHeight * scale), scale);
    }
    pen.globalAlpha = 1;
    this.drawBands(pen, STRIP, plotHeight);
    this.drawSeparators(pen, rows);
    pen.restore();
    this.drawLabels(pen, rows);
    this.drawOwnerNames(pen, rows);
    this.drawMarks(pen);
    pen.strokeStyle = this.ink.line; pen.lineWidth = 1;
    pen.strokeRect(left - .5, STRIP - .5, width + 1, plotHeight + 1);
  }

  drawRow(pen, row, y, height) {
    const end = Math.min(this.to, this.model.now);
    for (let index = Math.max(0, row.index(this.from)); index < row.at.length && row.at[index] < this.to; index++) {
      const owner = row.values[index];
      const since = Math.max(row.at[index], this.from), until = index + 1 < row.at.length ? Math.min(row.at[index + 1], end) : end;
      if (owner === null || until <= since) continue;
      const x = this.x(since);
      pen.globalAlpha = this.highlight === null || this.highlight === owner ? 1 : .16;
      pen.fillStyle = owner === UNOWNED ? this.ink.unowned : this.colour(owner);
      /* The minimum width keeps short intervals visible. */
      pen.fillRect(x, y, Math.max(this.x(until) - x, owner === UNOWNED ? 1.5 : .5), height);
    }
  }

  /* Draw one row on each line of pixels.  Calling drawRow for thousands of small rectangles would take longer than a frame. */
  drawPixels(pen, rows, lines, scale) {
    const first = Math.round(this.left * scale), across = Math.round((this.left + this.width) * scale) - first;
    if (across < 1 || lines < 1) return;
    const ground = new Uint32Array(across).fill(this.pixel(this.ink.plot)), faint = this.pixel(this.ink.faint);
    for (const at of this.ticks()) { const x = Math.round(this.x(at)); ground.fill(faint, Math.max(0, Math.round(x * scale) - first), Math.max(0, Math.round((x + 1) * scale) - first)); }
    const whole = pen.createImageData(across, lines), pixels = new Uint32Array(whole.data.buffer);
    const end = Math.min(this.to, this.model.now), rate = across / (this.to - this.from);
    for (let line = 0; line < lines; line++) {
      const row = rows[Math.floor(line * rows.length / lines)][2], begin = line * across;
      pixels.set(ground, begin);
      for (let index = Math.max(0, row.index(this.from)); index < row.at.length && row.at[index] < this.to; index++) {
        const owner = row.values[index];
        const since = Math.max(row.at[index], this.from), until = index + 1 < row.at.length ? Math.min(row.at[index + 1], end) : end;
        if (owner === null || until <= since) continue;
        const x = Math.min(across - 1, Math.round((since - this.from) * rate)), least = owner === UNOWNED ? Math.ceil(1.5 * scale) : 1;
        pixels.fill(this.pixel(owner === UNOWNED ? this.ink.unowned : this.colour(owner), this.highlight === null || this.highlight === owner ? 1 : .16), begin + x, begin + Math.min(across, Math.max(x + least, Math.round((until - this.from) * rate))));
      }
    }
    pen.putImageData(whole, first, Math.round(STRIP * scale));
  }

  /* The pixel value of a colour over the plot's background, computed with a canvas of one pixel. */
  pixel(colour, alpha = 1) {
    const key = colour + alpha;
    let found = this.shades.get(key);
    if (found === undefined) {
      const drop = this.drop ??= Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d", {willReadFrequently: true});
      for (const [style, strength] of [[this.ink.plot, 1], [colour, alpha]]) { drop.globalAlpha = strength; drop.fillStyle = style; drop.fillRect(0, 0, 1, 1); }
      found = new Uint32Array(drop.getImageData(0, 0, 1, 1).data.buffer)[0];
      this.shades.set(key, found);
    }
    return found;
  }

  drawGrid(pen, top, height) {
    pen.strokeStyle = this.ink.faint; pen.lineWidth = 1;
    for (const at of this.ticks()) { const x = Math.round(this.x(at)) + .5; pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, top + height); pen.stroke(); }
  }

  drawBands(pen, top, height) {
    for (const one of this.group.rebalances.values()) {
      const since = this.x(one.began), until = this.x(one.ended ?? this.model.now);
      if (until < this.left || since > this.left + this.width) continue;
      pen.fillStyle = this.ink.band;
      pen.fillRect(since, top, Math.max(2, until - since), height);
    }
    pen.fillStyle = this.ink.blind;
    for (const [since, until] of this.model.blind)
      pen.fillRect(this.x(since), top, Math.max(2, this.x(until ?? this.model.now) - this.x(since)), height);
    pen.strokeStyle = this.ink.muted; pen.setLineDash([2, 4]);
    for (const [at] of this.model.meta.marks ?? []) { const x = Math.round(this.x(at)) + .5; pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, top + height); pen.stroke(); }
    pen.setLineDash([]);
  }

  drawSeparators(pen, rows) {
    if (this.order === "owner") return;
    pen.strokeStyle = this.ink.surface; pen.lineWidth = 2;
    for (let index = 1; index < rows.length; index++) {
      if (rows[index][1] !== 0) { index += rows[index][0].rows.length - rows[index][1] - 1; continue; }
      const y = STRIP + index * this.rowHeight - this.offset;
      pen.beginPath(); pen.moveTo(this.left, y); pen.lineTo(this.left + this.width, y); pen.stroke();
    }
  }

  cut(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let end = Math.min(text.length, 80);
    while (end > 1 && pen.measureText(text.slice(0, end) + "…").width > width) end--;
    return text.slice(0, end) + "…";
  }

  /* Shorten a text by omitting its middle, because the names in one group differ at their ends. */
  cutMiddle(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    for (let keep = Math.min(text.length, 60); keep > 2; keep--) {
      const cut = text.slice(0, Math.floor(keep * .4)) + "…" + text.slice(-Math.ceil(keep * .6));
      if (pen.measureText(cut).width <= width) return cut;
    }
    return "…";
  }

  /* Draw on the left the topics, and the partition numbers if there is room. */
  drawLabels(pen, rows) {
    pen.fillStyle = this.ink.muted; pen.textAlign = "right";
    const bottom = STRIP + this.plotHeight, mixed = this.order === "owner", last = Math.min(rows.length, Math.ceil((this.offset + this.plotHeight) / this.rowHeight));
    const numbers = this.rowHeight >= 9, every = Math.max(1, Math.ceil(13 / this.rowHeight));
    for (let index = Math.floor(this.offset / this.rowHeight); index < last && numbers; index++) {
      const y = STRIP + (index + .5) * this.rowHeight - this.offset;
      if (index % every || y < STRIP + 4 || y > bottom - 4) continue;
      const [topic, number] = rows[index];
      pen.fillText(mixed && !this.narrow && this.group.topics.size > 1 ? this.cut(pen, shown(topic.name), this.left - 40) + " " + number : String(number), this.left - 7, y);
    }
    if (mixed) return;
    /* Draw the topic's name next to its rows. */
    pen.textAlign = "left"; pen.fillStyle = this.ink.text;
    let index = 0;
    while (index < rows.length) {
      const topic = rows[index][0], top = Math.max(STRIP, STRIP + index * this.rowHeight - this.offset);
      index += topic.rows.length;
      const end = Math.min(bottom, STRIP + index * this.rowHeight - this.offset);
      if (end - top < 11 || (this.narrow && numbers)) continue;
      const room = this.left - (numbers ? 34 : 12);
      pen.fillText(this.cut(pen, shown(topic.name), room), 2, Math.min(top + 9, (top + end) / 2));
      if (!numbers && end - top > 26) {
        pen.fillStyle = this.ink.muted;
        pen.fillText(this.cut(pen, figure(topic.rows.length) + (this.narrow ? "" : " partitions"), room), 2, top + 24);
        pen.fillStyle = this.ink.text;
      }
    }
  }

  /* Draw on the right the last owners, next to their rows. */
  drawOwnerNames(pen, rows) {
    pen.textAlign = "left";
    const at = Math.min(this.to, this.model.now), x = this.left + this.width + 8;
    /* If rows are thinner than a pixel, check only the row that is drawn for each pixel. */
    const step = Math.max(1, Math.floor(1 / this.rowHeight));
    let free = STRIP + 2;
    for (let index = Math.floor(this.offset / this.rowHeight); index < rows.length;) {
      const owner = rows[index][2].value(at);
      let next = index + step;
      while (next < rows.length && rows[next][2].value(at) === owner) next += step;
      const top = STRIP + index * this.rowHeight - this.offset, end = Math.min(STRIP + next * this.rowHeight - this.offset, STRIP + this.plotHeight);
      if (top > STRIP + this.plotHeight) break;
      index = next;
      const y = (Math.max(top, STRIP) + end) / 2;
      if (end - top < 6 || y - 6.5 < free || y + 6 > STRIP + this.plotHeight + 4 || owner === null) continue;
      free = y + 6.5;
      pen.fillStyle = owner === UNOWNED ? this.ink["unowned-line"] : this.colour(owner);
      pen.fillRect(x - 6, Math.max(top, STRIP) + 1, 3, Math.max(2, end - Math.max(top, STRIP) - 2));
      pen.fillStyle = owner === UNOWNED ? this.ink["unowned-line"] : this.ink.text;
      pen.fillText(this.cutMiddle(pen, owner === UNOWNED ? "no owner" : this.name(owner), this.right - 12), x + 1, y);
    }
  }

  name(owner) { const member = this.group.members.get(owner); return shown(member?.label || member?.id || `member ${owner}`, 80); }

  /* Draw above the rows a mark for each rebalance, and the marks of a run. */
  drawMarks(pen) {
    const right = this.left + this.width;
    let free = this.left;
    pen.textAlign = "left";
    for (const [at, text] of this.model.meta.marks ?? []) {
      const x = this.x(at), label = shown(text, 60), width = pen.measureText(label).width;
      if (x < this.left || x > right || x < free || x + width > right + this.right) continue;
      pen.fillStyle = this.ink.muted; pen.fillText(label, x + 3, 8); free = x + width + 10;
    }
    pen.fillStyle = this.ink.mark;
    let last = -Infinity;
    for (const one of this.group.rebalances.values()) {
      const x = this.x(one.began);
      if (x < this.left - 1 || x > right || x - last < 2) continue;
      last = x;
      pen.beginPath(); pen.moveTo(x - 4, STRIP - 8); pen.lineTo(x + 4, STRIP - 8); pen.lineTo(x, STRIP - 1); pen.fill();
    }
  }

  ticks() {
    const span = this.to - this.from, wanted = span / Math.max(2, this.width / (this.narrow ? 72 : 110));
    const step = STEPS.find(one => one >= wanted) ?? Math.ceil(wanted / 604800) * 604800;
    const shift = this.model.meta.clock === "run" ? 0 : new Date(this.to * 1000).getTimezoneOffset() * 60;
    const found = [];
    for (let at = Math.ceil((this.from - shift) / step) * step + shift; at <= this.to; at += step) found.push(at);
    this.step = step;
    return found;
  }

  clock(at, exact = false) {
    if (this.model.meta.clock === "run") return exact ? `${at.toFixed(2)} s` : `${+at.toFixed(1)} s`;
    const date = new Date(at * 1000), two = value => String(value).padStart(2, "0");
    const time = `${two(date.getHours())}:${two(date.getMinutes())}` + (exact || this.step < 60 ? `:${two(date.getSeconds())}` : "");
    const day = !exact && this.step >= 86400 ? `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}` : "";
    return (day || time) + (this.step < 1 && !day ? "." + Math.floor(date.getMilliseconds() / 100) : "");
  }

  drawAxis() {
    const pen = this.prepare("axis", 20);
    pen.fillStyle = this.ink.muted; pen.textAlign = "center";
    for (const at of this.ticks()) {
      const x = this.x(at), text = this.clock(at), half = pen.measureText(text).width / 2;
      if (x - half >= 0 && x - half >= this.left - 20 && x + half <= this.whole) pen.fillText(text, x, 11);
    }
  }

  drawChart(name, lines, height) {
    const box = this.root.querySelector(`#${name}-box`);
    box.hidden = lines.every(([line]) => line.at.length === 0);
    if (box.hidden) return;
    const pen = this.prepare(name, height), end = Math.min(this.to, this.model.now);
    let top = 0;
    for (const [line] of lines)
      for (let index = Math.max(0, line.index(this.from)); index < line.at.length && line.at[index] <= this.to; index++) top = Math.max(top, line.values[index] ?? 0);
    const most = top > 0 ? top : 1, y = value => height - 1 - value / most * (height - 5);
    pen.fillStyle = this.ink.plot; pen.fillRect(this.left, 0, this.width, height);
    pen.save();
    pen.beginPath(); pen.rect(this.left, 0, this.width, height); pen.clip();
    this.drawGrid(pen, 0, height);
    this.drawBands(pen, 0, height);
    for (const [line, colour, filled] of lines) this.drawLine(pen, line, colour, filled, y, end, height);
    pen.restore();
    pen.strokeStyle = this.ink.line; pen.lineWidth = 1;
    pen.strokeRect(this.left - .5, -.5, this.width + 1, height);
    pen.fillStyle = this.ink.muted; pen.textAlign = "right";
    pen.fillText(top < 1000 ? NUMBER.format(top) : COMPACT.format(top), this.left - 7, 7);
    if (top > 0) pen.fillText("0", this.left - 7, height - 6);
  }

  drawLine(pen, line, colour, filled, y, end, height) {
    const path = new Path2D();
    let begun = false, x = 0;
    for (let index = Math.max(0, line.index(this.from)); index < line.at.length && line.at[index] <= this.to; index++) {
      const value = line.values[index];
      if (value === null) continue;
      x = this.x(Math.max(line.at[index], this.from));
      if (!begun) { path.moveTo(x, y(value)); begun = true; }
      path.lineTo(x, y(value));
      path.lineTo(this.x(index + 1 < line.at.length ? Math.min(line.at[index + 1], end) : end), y(value));
    }
    if (!begun) return;
    pen.strokeStyle = colour; pen.lineWidth = 1.4; pen.lineJoin = "round";
    pen.stroke(path);
    if (filled) {
      const area = new Path2D(path), first = Math.max(line.at[0], this.from);
      area.lineTo(this.x(end), height); area.lineTo(this.x(first), height);
      pen.globalAlpha = .1; pen.fillStyle = colour; pen.fill(area); pen.globalAlpha = 1;
    }
  }

  /* The data at a point of the page, for the tooltip: {at, row, owner, since, until, rebalance, blind}. */
  at(x, y) {
    const at = this.time(x), found = {at, row: null, rebalance: null, blind: null};
    if (x < this.left || x > this.left + this.width || !this.group) return null;
    const near = 5 / this.width * (this.to - this.from);
    for (const one of this.group.rebalances.values()) if (one.began - near <= at && at <= (one.ended ?? this.model.now) + near) found.rebalance = one;
    for (const one of this.model.blind) if (one[0] <= at && at <= (one[1] ?? this.model.now)) found.blind = one;
    if (y >= STRIP && y < STRIP + this.plotHeight && at <= this.model.now) {
      const row = this.rows()[Math.floor((y - STRIP + this.offset) / this.rowHeight)];
      const index = row ? row[2].index(at) : -1;
      if (index >= 0 && row[2].values[index] !== null)
        Object.assign(found, {row, owner: row[2].values[index], since: row[2].at[index], until: row[2].at[index + 1] ?? null});
    }
    return found;
  }
}
