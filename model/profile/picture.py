"""A profile as an SVG picture: one bar a part, forward and backward side by side on one scale."""

from html import escape

from model.profile.parts import BACKWARD, FORWARD, PARTS, UPDATE
from model.profile.step import StepProfile
from model.profile.telling import BETWEEN, LOADER

WIDTH, LEFT, RIGHT, ROW = 760, 170, 90, 28
_COLOURS = {FORWARD: "#0969da", BACKWARD: "#cf5a1c", UPDATE: "#57606a", "": "#afb8c1"}


def picture(profile: StepProfile) -> str:
    """SVG text; every bar has its milliseconds and share beside it, so that nothing hangs on colour."""
    bars: list[tuple[str, list[tuple[str, float]]]] = [
        (part, [(cost.phase, cost.seconds) for cost in profile.of_part(part)])
        for part in PARTS
        if profile.of_part(part)
    ]
    bars += [(LOADER, [("", profile.loader_seconds)]), (BETWEEN, [("", profile.between_seconds)])]
    longest = max(sum(seconds for _, seconds in pieces) for _, pieces in bars) or 1.0
    scale = (WIDTH - LEFT - RIGHT - 60) / longest
    height = ROW * (len(bars) + 3)
    shapes = [
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, ROW, f"A step of {profile.tokens:,} tokens: {profile.seconds * 1e3:.1f} ms"),
    ]
    x = LEFT
    for word in (FORWARD, BACKWARD, UPDATE):
        shapes += [f'<rect x="{x}" y="{1.5 * ROW}" width="12" height="12" fill="{_COLOURS[word]}"/>']
        shapes += [_text(x + 18, 1.5 * ROW + 11, word)]
        x += 100
    for index, (name, pieces) in enumerate(bars):
        top, x = ROW * (index + 2.4), float(LEFT)
        shapes.append(_text(16, top + 15, name))
        for phase, seconds in pieces:
            wide = seconds * scale
            shapes.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="20" fill="{_COLOURS[phase]}"/>')
            x += wide
        total = sum(seconds for _, seconds in pieces)
        shapes.append(_text(x + 8, top + 15, f"{total * 1e3:.2f} ms, {total / profile.seconds:.1%}"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        f' role="img" font-family="system-ui, sans-serif" font-size="13">{"".join(shapes)}</svg>\n'
    )


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#1f2328">{escape(words)}</text>'
