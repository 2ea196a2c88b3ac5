"use strict";
/* The content of the messages over time; history.py keeps only the last state. */

const UNOWNED = -1;
const MOST_PARTITIONS = 200000;
const MOST_SEGMENTS = 2000000;

/* Names come from clients and are not trusted: characters that hide or reorder text are escaped. */
function shown(value, most = 240) {
  const text = String(value ?? "").replace(
    /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g,
    one => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
  return text.length > most ? text.slice(0, most) + "…" : text;
}

/* A line that keeps its value until the next point. */
class Series {
  constructor() { this.at = []; this.values = []; }
  push(at, value) {
    const last = this.at.length - 1;
    if (last >= 0 && this.at[last] >= at) { this.values[last] = value; return; }
    this.at.push(at); this.values.push(value);
  }
  /* The index of the point that applies at a time; -1 before the first. */
  index(at) {
    let low = 0, high = this.at.length;
    while (low < high) { const middle = (low + high) >> 1; if (this.at[middle] <= at) low = middle + 1; else high = middle; }
    return low - 1;
  }
  value(at) { const index = this.index(at); return index < 0 ? null : this.values[index]; }
  get last() { return this.values.length ? this.values[this.values.length - 1] : null; }
  trim(before) {
    const index = this.index(before);
    if (index > 0) { this.at.splice(0, index); this.values.splice(0, index); }
  }
}

class Group {
  constructor(id) {
    this.id = id;
    this.info = {};
    this.members = new Map();      /* number -> its displayed data, including members that left */
    this.topics = new Map();       /* name -> {count, rows: [Series of owners], gone, lag, read, written} */
    this.rebalances = new Map();   /* id -> {id, began, ended, reasons, moved} */
    this.unowned = new Series();
    this.unownedSeconds = 0;
    this.lag = new Series(); this.read = new Series(); this.written = new Series();
    this.behind = [];
    this.unknown = 0;              /* partitions whose lag no broker has reported */
    this.lagSeconds = undefined;   /* the age of the oldest first unread record; null if a topic's is unknown */
    this.segments = 0;
    this.version = 0;              /* grows with each change of owners, topics or members */
    this.gone = false;
  }

  /* What stands before the lag: it is higher if the lag of some partitions is unknown. */
  get lowerBound() { return this.unknown && this.lag.last !== null ? "≥ " : ""; }

  apply(change, at) {
    Object.assign(this.info, change.info);
    this.gone = false;
    for (const [number, member] of Object.entries(change.members ?? {})) this.member(+number, member, at);
    for (const [name, count] of Object.entries(change.topics ?? {})) this.topic(name, count, at);
    for (const [name, runs] of Object.entries(change.owners ?? {})) this.owners(name, runs, at);
    for (const [id, began, ended, reasons, moved] of change.rebalances ?? [])
      this.rebalances.set(id, {id, began, ended, reasons: reasons ?? [], moved: moved ?? 0});
    if (change.unowned) { this.unowned.push(at, change.unowned[0]); this.unownedSeconds = change.unowned[1]; }
    if (change.lag) this.lags(change.lag, at);
    for (const [number, lag] of Object.entries(change.member_lag ?? {})) {
      const member = this.members.get(+number);
      if (member) member.lag = lag;
    }
    if (change.unknown) this.unknown = Object.values(change.unknown).reduce((sum, count) => sum + count, 0);
    if (change.behind) this.behind = change.behind;
    if (change.lag_seconds) {
      const ages = Object.values(change.lag_seconds);
      this.lagSeconds = ages.includes(null) ? null : Math.max(0, ...ages);
    }
  }

  member(number, member, at) {
    this.version++;
    const known = this.members.get(number);
    if (member === null) { if (known) { known.until = at; known.lag = null; } return; }
    this.members.set(number, {...member, number, since: known?.since ?? at, until: null, lag: known?.lag ?? null});
  }

  topic(name, count, at) {
    this.version++;
    const known = this.topics.get(name);
    if (count === null) {
      if (known) { known.gone = true; for (const row of known.rows) if (row.last !== null) row.push(at, null); }
      return;
    }
    const topic = known ?? {name, rows: [], lag: new Series(), read: new Series(), written: new Series()};
    topic.gone = false;
    topic.rows.length = Math.min(topic.rows.length, count);
    while (topic.rows.length < Math.min(count, MOST_PARTITIONS)) topic.rows.push(new Series());
    this.topics.set(name, topic);
  }

  owners(name, runs, at) {
    const topic = this.topics.get(name);
    if (!topic) return;
    this.version++;
    for (const [first, last, owner] of runs)
      for (let number = Math.max(0, first); number <= last && number < topic.rows.length; number++)
        if (topic.rows[number].last !== owner) { topic.rows[number].push(at, owner); this.segments++; }
  }

  lags(rows, at) {
    let lag = Object.keys(rows).length ? null : 0, read = null, written = null;   /* null: no broker has reported it */
    for (const [name, [behind, got, put]] of Object.entries(rows)) {
      const topic = this.topics.get(name);
      if (behind !== null) lag = (lag ?? 0) + behind;
      if (got !== null && got !== undefined) read = (read ?? 0) + got;
      if (put !== null && put !== undefined) written = (written ?? 0) + put;
      if (topic) { topic.lag.push(at, behind); topic.read.push(at, got ?? null); topic.written.push(at, put ?? null); }
    }
    this.lag.push(at, lag); this.read.push(at, read); this.written.push(at, written);
  }

  trim(before) {
    this.lagSeconds = undefined;   /* the age of the oldest first unread record; null if a topic's is unknown */
    this.segments = 0;
    for (const [name, topic] of this.topics) {
      if (topic.gone && topic.rows.every(row => row.at.length < 2 || row.at[row.at.length - 1] <= before)) { this.topics.delete(name); this.version++; continue; }
      for (const row of topic.rows) { row.trim(before); this.segments += row.at.length; }
      for (const line of [topic.lag, topic.read, topic.written]) line.trim(before);
    }
    for (const line of [this.unowned, this.lag, this.read, this.written]) line.trim(before);
    for (const [id, one] of this.rebalances) if (one.ended !== null && one.ended < before) this.rebalances.delete(id);
    for (const [number, member] of this.members) if (member.until !== null && member.until < before) this.members.delete(number);
  }

  /* The displayed partitions, as [topic, number, Series]. */
  *partitions(only = null) {
    for (const name of [...this.topics.keys()].sort()) {
      if (only !== null && name !== only) continue;
      const topic = this.topics.get(name);
      for (let number = 0; number < topic.rows.length; number++) yield [topic, number, topic.rows[number]];
    }
  }

  /* For each current member the number of its partitions, and their ranges by topic. */
  shares() {
    const shares = new Map();
    for (const name of [...this.topics.keys()].sort()) {
      const topic = this.topics.get(name), mine = new Map();
      if (topic.gone) continue;
      for (let number = 0; number < topic.rows.length; number++) {
        const owner = topic.rows[number].last;
        if (owner === null || owner === UNOWNED) continue;
        let share = shares.get(owner);
        if (!share) shares.set(owner, share = {count: 0, topics: new Map()});
        share.count++;
        const ranges = mine.get(owner);
        if (!ranges) { const begun = [[number, number]]; mine.set(owner, begun); share.topics.set(name, begun); }
        else if (ranges[ranges.length - 1][1] === number - 1) ranges[ranges.length - 1][1] = number;
        else ranges.push([number, number]);
      }
    }
    return shares;
  }

  get present() { return [...this.members.values()].filter(member => member.until === null); }
  get partitionCount() { let sum = 0; for (const topic of this.topics.values()) if (!topic.gone) sum += topic.rows.length; return sum; }
  get rebalancing() { for (const one of this.rebalances.values()) if (one.ended === null) return true; return false; }
  get kind() {
    if (this.gone || this.info.error) return "bad";
    if (this.rebalancing) return "warn";
    return this.info.state === "Stable" ? "good" : "none";
  }
}

class Model {
  constructor(meta) {
    this.meta = meta;
    this.groups = new Map();
    this.began = null;
    this.now = null;
    this.blind = [];               /* [since, until or null, why]: the cluster did not answer */
    this.trimmed = 0;
    this.received = 0;
  }

  apply(message) {
    const at = Number(message.at);
    if (!Number.isFinite(at)) return;
    this.received++;
    this.began ??= at;
    /* A clock that was set back must not reverse the picture. */
    const now = this.now = Math.max(at, this.now ?? at);
    for (const id of message.gone ?? []) { const group = this.groups.get(id); if (group) this.end(group, now); }
    for (const [id, change] of Object.entries(message.groups ?? {})) {
      if (!this.groups.has(id)) this.groups.set(id, new Group(id));
      this.groups.get(id).apply(change, now);
    }
    const open = this.blind.length && this.blind[this.blind.length - 1][1] === null ? this.blind[this.blind.length - 1] : null;
    if (message.trouble) { if (open) open[2] = message.trouble; else this.blind.push([now, null, message.trouble]); }
    else if (open) open[1] = now;
    if (now - this.trimmed > 30) this.trim(now);
  }

  end(group, at) {
    group.gone = true;
    group.info.state = "Dead";
    for (const member of group.members.values()) if (member.until === null) member.until = at;
    for (const topic of group.topics.keys()) group.topic(topic, null, at);
    for (const one of group.rebalances.values()) one.ended ??= at;
  }

  trim(now) {
    this.trimmed = now;
    let horizon = this.meta.keep_s ? now - this.meta.keep_s : -Infinity;
    let segments = 0;
    for (const group of this.groups.values()) segments += group.segments;
    /* Too much data for a browser: drop half of it. */
    if (segments > MOST_SEGMENTS) horizon = Math.max(horizon, (Math.max(this.began, horizon) + now) / 2);
    if (horizon <= this.began) return;
    this.began = horizon;
    for (const [id, group] of this.groups) {
      group.trim(horizon);
      if (group.gone && group.topics.size === 0 && group.members.size === 0) this.groups.delete(id);
    }
    this.blind = this.blind.filter(one => one[1] === null || one[1] > horizon);
  }

  get trouble() { const last = this.blind[this.blind.length - 1]; return last && last[1] === null ? last[2] : null; }
}
