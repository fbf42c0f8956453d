"""A run as one HTML page: nothing is fetched from anywhere, no script runs, and every text of the run is text. Pure.

Readable on a phone and in print; dark where the reader's device is. The page states a policy that would stop a script even if one came in.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpc.spec.text import escaped

Points = Sequence[tuple[float, float]]
_LONGEST: Final = 400
_MOST_POINTS: Final = 600
_MOST_ROWS: Final = 200
_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2")
_STYLE: Final = """
:root{--ink:#1a1d21;--soft:#5b6470;--line:#d9dee4;--card:#fff;--back:#f5f6f8;--good:#047857;--bad:#b91c1c}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa4b0;--line:#343a42;--card:#1d2126;--back:#14171a;--good:#34d399;--bad:#f87171}}
*{box-sizing:border-box}body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:16px}h1{font-size:1.35rem;margin:.2em 0;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:0 0 .6em}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 16px;margin:14px 0}
dl{display:grid;grid-template-columns:minmax(8em,max-content) 1fr;gap:.25em 1em;margin:0}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere;min-width:0}.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.93em}
th,td{text-align:left;padding:.3em .8em .3em 0;border-bottom:1px solid var(--line);vertical-align:top}th{color:var(--soft);font-weight:500}
td{overflow-wrap:anywhere;min-width:5.5em}.good{color:var(--good)}.bad{color:var(--bad)}.soft{color:var(--soft)}
.badge{display:inline-block;border:1px solid currentColor;border-radius:99px;padding:0 .7em;font-size:.9em}
.bar{height:8px;background:var(--line);border-radius:4px;overflow:hidden;max-width:22em}.bar i{display:block;height:100%;background:#2563eb}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:11px system-ui,sans-serif}
@media(max-width:560px){main{padding:8px}section{padding:10px 12px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5em}svg text{font-size:22px}}
"""


def page(document: Mapping[str, Any], curves: Mapping[str, Points]) -> str:
    """The page of a run's document (`tp runs report --json` prints the same). Any value may be anything."""
    title = f"{_flat(document.get('exp'))} {_flat(document.get('run_id'))}"
    parts = [
        _head(document), _curve(curves), _verdict(document), _shape(document), _efficiency(document), _attempts(document),
        _followups(document), _settings(document), _origin(document), _artifacts(document),
    ]  # fmt: skip
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _flat(value: Any) -> str:
    return "" if value is None else str(value)


def _text(value: Any) -> str:
    """Any value as harmless text: markup is written out, control and direction characters are escapes, length is bounded."""
    if value is None or value == "":
        return '<span class="soft">not known</span>'
    if isinstance(value, float):
        value = f"{value:.6g}"
    text = escaped(str(value))
    return html.escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…", quote=True)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>" if body else ""


def _pairs(rows: Sequence[tuple[str, Any]]) -> str:
    cells = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in rows[:_MOST_ROWS])
    return f"<dl>{cells}</dl>" if cells else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(h)}</th>" for h in headers)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows[:_MOST_ROWS])
    more = f'<p class="soft">{len(rows) - _MOST_ROWS} more</p>' if len(rows) > _MOST_ROWS else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def _flattened(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names and plain values, to a bounded depth."""
    if isinstance(value, Mapping) and prefix.count(".") < 6:
        return [
            pair for key, item in value.items() for pair in _flattened(item, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(value, (list, tuple)):
        return [(prefix, ", ".join(map(str, value)) if value else None)]
    return [(prefix, value)]


def _head(document: Mapping[str, Any]) -> str:
    state = _map(document.get("state"))
    word = _flat(state.get("state")) or "unknown"
    good = "good" if word == "done" else "bad" if word in ("error", "timeout", "node_fail", "vanished") else "soft"
    recipe = _map(document.get("recipe"))
    rows = [
        ("owner", document.get("owner")), ("recipe", f"{_flat(recipe.get('name'))} {_flat(recipe.get('version'))}".strip()),
        ("submitted", state.get("submitted_at")), ("started", state.get("started_at")), ("ended", state.get("ended_at")),
        ("message", state.get("message") or "-"), ("audit", document.get("audit")),
        *((f"label {key}", value) for key, value in _map(document.get("labels")).items()),
    ]  # fmt: skip
    title = f"{_text(document.get('exp'))} <span class=soft>{_text(document.get('run_id'))}</span>"
    return f'<section><h1>{title}</h1><p><span class="badge {good}">{_text(word)}</span></p>{_pairs(rows)}</section>'


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _curve(curves: Mapping[str, Points]) -> str:
    if not curves:
        return _section("Loss", '<p class="soft">no metrics</p>')
    lines = {name: _thinned(points) for name, points in list(curves.items())[: len(_COLOURS)]}
    xs, ys = ([p[i] for points in lines.values() for p in points] for i in (0, 1))
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    width, height, x0, y0, x1, y1 = 720, 300, 56, 12, 708, 268

    def at(x: float, y: float) -> str:
        px = x0 + (x - left) / ((right - left) or 1) * (x1 - x0)
        py = y1 - (y - low) / ((high - low) or 1) * (y1 - y0)
        return f"{px:.1f},{py:.1f}"

    shapes = [f'<path d="M{x0} {y0}V{y1}H{x1}" fill="none" stroke="currentColor" opacity=".35"/>']
    for colour, points in zip(_COLOURS, lines.values(), strict=False):
        line = " ".join(at(*p) for p in points)
        dot = f'<circle cx="{at(*points[0]).partition(",")[0]}" cy="{at(*points[0]).partition(",")[2]}" r="3" fill="{colour}"/>'
        shapes.append(
            dot if len(points) == 1 else f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
    for y, value in ((y0 + 8, high), (y1, low)):
        shapes.append(f'<text x="{x0 - 6}" y="{y}" text-anchor="end">{value:.4g}</text>')
    shapes.append(
        f'<text x="{x0}" y="{y1 + 18}">{left:g}</text><text x="{x1}" y="{y1 + 18}" text-anchor="end">step {right:g}</text>'
    )
    legend = " ".join(f'<span style="color:{c}">● {_text(n)}</span>' for c, n in zip(_COLOURS, lines, strict=False))
    picture = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="metrics over steps">{"".join(shapes)}</svg>'
    return _section("Loss", f"{picture}<p>{legend}</p>")


def _thinned(points: Points) -> Points:
    """At most so many points as a screen has columns; the last one stays."""
    step = -(-len(points) // _MOST_POINTS)
    kept = list(points[::step])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def _verdict(document: Mapping[str, Any]) -> str:
    verdict = _map(document.get("verdict"))
    if not verdict:
        return ""
    word = _flat(verdict.get("verdict"))
    colour = "good" if word == "passed" else "bad" if word == "failed" else "soft"
    gates = [
        [_map(g).get("metric"), "passed" if _map(g).get("passed") else "failed", _map(g).get("reason")]
        for g in _list(verdict.get("gates"))
    ]
    head = f'<p><span class="badge {colour}">{_text(word)}</span> {_text(verdict.get("reason"))}</p>'
    return _section("Verdict", head + _table(["metric", "gate", "why"], gates))


def _shape(document: Mapping[str, Any]) -> str:
    shape = _map(document.get("shape"))
    rows = [
        [_map(p).get(k) for k in ("name", "nodes", "ranks_per_node", "gpus_per_node")]
        for p in _list(shape.get("pools"))
    ]
    return _section("Shape", _table(["pool", "nodes", "ranks a node", "GPUs a node"], rows))


def used_of(part: Mapping[str, Any]) -> str:
    """`12.3 s of 60 s (20.5 %)`, with what is not known said so; "" where nothing is."""
    used, asked, share = (part.get(k) for k in ("used", "asked", "share"))
    if used is None and asked is None:
        return ""
    unit = _flat(part.get("unit"))
    told = f"{_amount(used, unit)} of {_amount(asked, unit)}"
    return told + (f" ({share * 100:.1f} %)" if isinstance(share, (int, float)) else "")


def _amount(value: Any, unit: str) -> str:
    if not isinstance(value, (int, float)):
        return "not known"
    return f"{value / (1 << 20):.4g} MiB" if unit == "bytes" else f"{value:.4g} {unit}"


def _efficiency(document: Mapping[str, Any]) -> str:
    found = _map(document.get("efficiency"))
    rows = []
    for name in ("time", "cpu", "memory"):
        part = _map(found.get(name))
        share = part.get("share")
        bar = ""
        if isinstance(share, (int, float)):
            bar = f'<div class="bar"><i style="width:{min(100.0, max(0.0, share * 100)):.1f}%"></i></div>'
        told = _text(used_of(part))
        rows.append(f"<dt>{name}</dt><dd>{told}{bar}</dd>")
    rows.append(
        f"<dt>GPUs</dt><dd>{_text(found.get('gpus_asked'))} asked; their load: {_text(found.get('gpu_share'))}</dd>"
    )
    why = _map(document.get("accounting")).get("not_known")
    note = f'<p class="soft">{_text(why)}: the launchers&#39; own figures stand here</p>' if why else ""
    return _section("Used of what was asked for", f"<dl>{''.join(rows)}</dl>{note}")


def _attempts(document: Mapping[str, Any]) -> str:
    names = ("attempt", "class", "started_at", "ended_at", "step", "job_id", "hosts", "message")
    rows = [
        [", ".join(map(str, v)) if isinstance(v := _map(a).get(n), list) else v for n in names]
        for a in _list(document.get("attempts"))
    ]
    return _section(
        "Attempts", _table(["attempt", "ended as", "started", "ended", "step", "job", "nodes", "message"], rows)
    )


def _followups(document: Mapping[str, Any]) -> str:
    rows = [
        [_map(f).get(n) for n in ("action", "run_id", "exp", "state", "message")]
        for f in _list(document.get("followups"))
    ]
    return _section("What follows", _table(["action", "run", "experiment", "state", "message"], rows))


def _settings(document: Mapping[str, Any]) -> str:
    return _section("Settings", _pairs(_flattened(document.get("hyperparams") or {})) or '<p class="soft">none</p>')


def _origin(document: Mapping[str, Any]) -> str:
    rows = _flattened(document.get("origin") or {}) + _flattened({"admission": document.get("admission") or {}})
    return _section("Provenance", f'<p class="soft">{_text(document.get("origin_is"))}</p>{_pairs(rows)}')


def _artifacts(document: Mapping[str, Any]) -> str:
    rows = [[_map(a).get(n) for n in ("kind", "path", "size", "sha256")] for a in _list(document.get("artifacts"))]
    return _section("Artifacts", _table(["kind", "path", "bytes", "SHA-256"], rows))
