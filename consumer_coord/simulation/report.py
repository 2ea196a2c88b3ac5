"""One self-contained HTML page about a simulated deployment: which member owned what when, and what it cost.

The page needs nothing but itself: the data are in it as JSON, the pictures are drawn by a few lines of script on canvases.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

from consumer_coord.simulation.deployment import DeploymentResult

#: Pictures of larger groups leave partitions out evenly, or no browser would draw them.
_MOST_ROWS = 2_000


def write_report(result: DeploymentResult, path: Path) -> None:
    """Write the page."""
    path.write_text(render(result), encoding="utf-8")


def render(result: DeploymentResult) -> str:
    """The page as text."""
    deployment = result.deployment
    step = max(1, -(-len(result.partitions) // _MOST_ROWS))
    shown = range(0, len(result.partitions), step)
    row_of = {partition: row for row, partition in enumerate(shown)}
    data = {
        "end": round(result.ended_s, 3),
        "rows": [result.partitions[index] for index in shown],
        "members": len(result.members),
        "bars": [
            [
                row_of[each.partition],
                each.member,
                round(each.since, 3),
                round(result.ended_s if each.to is None else each.to, 3),
            ]
            for each in result.ownerships
            if each.partition in row_of
        ],
        "rebalances": [[round(at, 3), generation, members] for at, generation, members in result.rebalances],
        "phases": [[phase.name, round(phase.began_s, 3), round(phase.stable_s, 3)] for phase in result.phases],
        "unowned": _unowned(result),
        "loads": _loads(result),
    }
    title = f"{len(result.members)} members, {len(result.partitions)} partitions, {deployment.churn}"
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{html.escape(str(cell))}</td>"
            for cell in (
                phase.name,
                f"{phase.stable_s - phase.began_s:.1f} s",
                phase.rebalances,
                phase.moved,
                phase.interruptions,
                f"{phase.unowned_partition_s:.1f}",
                f"{phase.longest_unowned_s:.1f} s",
                f"{phase.least} to {phase.most}",
            )
        )
        + "</tr>"
        for phase in result.phases
    )
    settings = ", ".join(
        f"{name} {value}"
        for name, value in (
            ("assignor", "+".join(deployment.assignors)),
            ("session.timeout.ms", deployment.session_timeout_ms),
            ("heartbeat.interval.ms", deployment.heartbeat_interval_ms),
            ("static members", "yes" if deployment.static else "no"),
            ("polls every", f"{deployment.poll_every_ms} ms"),
            ("racks", deployment.racks),
            ("seed", deployment.seed),
        )
    )
    left_out = f" (every {step}th of {len(result.partitions)})" if step > 1 else ""
    return _PAGE.format(
        title=html.escape(title),
        settings=html.escape(settings),
        rows=rows,
        left_out=left_out,
        # A "</script>" inside a name would end the script.
        data=json.dumps(data, separators=(",", ":")).replace("</", "<\\/"),
    )


def _unowned(result: DeploymentResult) -> list[list[float]]:
    """(seconds, how many partitions have no owner from then on)."""
    changes: list[tuple[float, int]] = []
    for each in result.ownerships:
        changes.append((each.since, -1))
        if each.to is not None:
            changes.append((each.to, 1))
    unowned = len(result.partitions)
    steps: list[list[float]] = [[0.0, unowned]]
    for at, delta in sorted(changes):
        unowned += delta
        if steps[-1][0] == round(at, 3):
            steps[-1][1] = unowned
        else:
            steps.append([round(at, 3), unowned])
    return steps


def _loads(result: DeploymentResult) -> list[int]:
    """How many partitions each member has at the end, the most first; members that are gone count nothing."""
    loads: dict[int, int] = {}
    for each in result.ownerships:
        if each.to is None:
            loads[each.member] = loads.get(each.member, 0) + 1
    return sorted(loads.values(), reverse=True)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; color: #222; padding: 0 1em }}
h1 {{ font-size: 1.5em; margin-bottom: 0 }} h2 {{ font-size: 1.1em; margin: 1.6em 0 .3em }}
p {{ margin: .3em 0; color: #555 }} canvas {{ width: 100%; display: block; background: #fafafa; border: 1px solid #ddd }}
table {{ border-collapse: collapse; margin-top: 1em }}
td, th {{ padding: .3em .9em; border-bottom: 1px solid #ddd; text-align: right }}
td:first-child, th:first-child {{ text-align: left }}
#tip {{ position: fixed; background: #222; color: #fff; padding: .2em .6em; border-radius: 3px; font-size: 12px;
  pointer-events: none; display: none }}
</style></head><body>
<h1>{title}</h1><p>{settings}</p>
<table><tr><th>phase</th><th>stable after</th><th>rebalances</th><th>partitions moved</th><th>take-ups</th>
<th>unowned partition-seconds</th><th>longest without owner</th><th>partitions per member</th></tr>{rows}</table>
<h2>The owner of each partition{left_out}</h2>
<p>One line per partition, one colour per member; white: no owner. Dashed: a completed rebalance. Point at it for names.</p>
<canvas id="gantt"></canvas>
<h2>Partitions without an owner</h2><canvas id="unowned"></canvas>
<h2>Partitions per member at the end</h2><p>Members from the most loaded to the least.</p><canvas id="loads"></canvas>
<div id="tip"></div>
<script>
const data = {data};
const tip = document.getElementById("tip");
const LEFT = 90, BOTTOM = 24;
function colour(member) {{ return `hsl(${{(member * 137.508) % 360}} 62% ${{48 + member % 3 * 9}}%)`; }}
function canvas(id, height) {{
  const element = document.getElementById(id), scale = window.devicePixelRatio || 1;
  element.style.height = height + "px";
  element.width = element.clientWidth * scale; element.height = height * scale;
  const pen = element.getContext("2d"); pen.scale(scale, scale); pen.font = "11px system-ui, sans-serif";
  return [element, pen, element.clientWidth - LEFT - 10, height - BOTTOM];
}}
function timeAxis(pen, width, height) {{
  pen.fillStyle = "#555"; pen.textAlign = "center";
  const rough = data.end / 8, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
  for (let at = 0; at <= data.end; at += step)
    pen.fillText(+at.toFixed(3) + " s", LEFT + at / data.end * width, height + 16);
}}
function gantt() {{
  const rows = data.rows.length, line = Math.max(1, Math.min(16, Math.floor(700 / rows)));
  const [element, pen, width, height] = canvas("gantt", rows * line + BOTTOM);
  const x = at => LEFT + at / data.end * width;
  pen.fillStyle = "#fff"; pen.fillRect(LEFT, 0, width, height);
  for (const [row, member, from, to] of data.bars) {{
    pen.fillStyle = colour(member);
    pen.fillRect(x(from), row * line, Math.max(.5, x(to) - x(from)), line > 3 ? line - 1 : line);
  }}
  pen.strokeStyle = "rgba(0,0,0,.35)"; pen.setLineDash([3, 3]); pen.lineWidth = .7;
  if (data.rebalances.length <= 200) for (const [at] of data.rebalances) {{
    pen.beginPath(); pen.moveTo(x(at), 0); pen.lineTo(x(at), height); pen.stroke();
  }}
  pen.setLineDash([]); pen.fillStyle = "#555"; pen.textAlign = "right";
  const every = Math.max(1, Math.ceil(14 / line));
  for (let row = 0; row < rows; row += every)
    pen.fillText(data.rows[row].slice(-14), LEFT - 6, row * line + Math.max(9, line - 3));
  timeAxis(pen, width, height);
  element.onmousemove = event => {{
    const box = element.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / line), at = (event.clientX - box.left - LEFT) / width * data.end;
    if (row >= rows || row < 0 || at < 0 || at > data.end) {{ tip.style.display = "none"; return; }}
    const bar = data.bars.find(([r, , from, to]) => r === row && from <= at && at < to);
    tip.textContent = `${{data.rows[row]}} at ${{at.toFixed(1)}} s: ` +
      (bar ? `member-${{bar[1]}}, ${{bar[2].toFixed(1)}} to ${{bar[3].toFixed(1)}} s` : "no owner");
    tip.style.left = event.clientX + 14 + "px"; tip.style.top = event.clientY + 10 + "px"; tip.style.display = "block";
  }};
  element.onmouseleave = () => tip.style.display = "none";
}}
function unowned() {{
  const [, pen, width, height] = canvas("unowned", 150), top = Math.max(1, ...data.unowned.map(step => step[1]));
  const x = at => LEFT + at / data.end * width, y = count => height - count / top * (height - 10);
  pen.fillStyle = "#c0392b"; pen.beginPath(); pen.moveTo(LEFT, height);
  let last = 0;
  for (const [at, count] of data.unowned) {{ pen.lineTo(x(at), y(last)); pen.lineTo(x(at), y(count)); last = count; }}
  pen.lineTo(x(data.end), y(last)); pen.lineTo(x(data.end), height); pen.fill();
  pen.fillStyle = "#555"; pen.textAlign = "right"; pen.fillText(top, LEFT - 6, 18); pen.fillText(0, LEFT - 6, height);
  timeAxis(pen, width, height);
}}
function loads() {{
  const [, pen, width, height] = canvas("loads", 150), top = Math.max(1, ...data.loads), bar = width / data.loads.length;
  pen.fillStyle = "#2c6fad";
  data.loads.forEach((load, index) => {{
    const size = load / top * (height - 10);
    pen.fillRect(LEFT + index * bar, height - size, Math.max(.5, bar > 4 ? bar - 1 : bar), size);
  }});
  pen.fillStyle = "#555"; pen.textAlign = "right"; pen.fillText(top, LEFT - 6, 18); pen.fillText(0, LEFT - 6, height);
  pen.textAlign = "left"; pen.fillText(data.loads.length + " members", LEFT, height + 16);
}}
function draw() {{ gantt(); unowned(); loads(); }}
draw(); window.addEventListener("resize", draw);
</script></body></html>
"""
