"""Draw the shipped plugins' icons: `python hpc/plugins/sources/draw_icons.py`. Drawn four times as large and scaled down, for smooth edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

SIZE, SCALE = 256, 4
SHIPPED = Path(__file__).resolve().parent.parent / "shipped"
WHITE = (255, 255, 255, 255)


def tile(top: tuple[int, int, int], bottom: tuple[int, int, int]) -> Any:
    """A rounded square with a vertical gradient on a transparent ground."""
    side = SIZE * SCALE
    ramp = Image.new("RGBA", (1, side))
    for y in range(side):
        part = y / (side - 1)
        ramp.putpixel((0, y), (*(round(a + (b - a) * part) for a, b in zip(top, bottom, strict=True)), 255))
    mask = Image.new("L", (side, side), 0)
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, side - 1, side - 1), radius=56 * SCALE, fill=255)
    image = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    image.paste(ramp.resize((side, side)), (0, 0), mask)
    return image


def scaled(*values: float) -> tuple[float, ...]:
    return tuple(value * SCALE for value in values)


def bar(draw: Any, x: float, y: float, width: float, height: float, colour: tuple[int, int, int, int]) -> None:
    draw.rounded_rectangle(scaled(x, y, x + width, y + height), radius=height / 2 * SCALE, fill=colour)


def jsonl_filter() -> Any:
    """Records fall into a funnel; the accepted one leaves it."""
    image = tile((20, 184, 166), (15, 82, 110))
    layer = Image.new("RGBA", image.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    for x, y, width, strength in ((52, 30, 66, 255), (134, 30, 70, 255), (72, 55, 50, 150), (138, 55, 48, 150)):
        bar(draw, x, y, width, 14, (255, 255, 255, strength))
    funnel = [(40, 84), (216, 84), (148, 152), (148, 180), (108, 196), (108, 152)]
    draw.polygon([scaled(x, y) for x, y in funnel], fill=WHITE)
    draw.line([scaled(x, y) for x, y in [*funnel, funnel[0], funnel[1]]], fill=WHITE, width=10 * SCALE, joint="curve")
    for x, y in funnel:
        draw.ellipse(scaled(x - 5, y - 5, x + 5, y + 5), fill=WHITE)
    draw.ellipse(scaled(113, 206, 143, 236), fill=(253, 224, 71, 255))
    return Image.alpha_composite(image, layer)


def text_records() -> Any:
    """A page, and two windows on its text that overlap."""
    image = tile((129, 120, 248), (67, 40, 148))
    page = Image.new("RGBA", image.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(page)
    draw.rounded_rectangle(scaled(58, 30, 198, 226), radius=16 * SCALE, fill=WHITE)
    for index, width in enumerate((92, 104, 76, 104, 88, 104, 60)):
        bar(draw, 76, 52 + 23 * index, width, 10, (120, 110, 190, 255))
    image = Image.alpha_composite(image, page)
    for box, colour in (((40, 44, 216, 142), (253, 224, 71)), ((40, 112, 216, 212), (45, 212, 191))):
        window = Image.new("RGBA", image.size, (0, 0, 0, 0))
        ImageDraw.Draw(window).rounded_rectangle(
            scaled(*box), radius=14 * SCALE, fill=(*colour, 82), outline=(*colour, 255), width=7 * SCALE
        )
        image = Image.alpha_composite(image, window)
    return image


def main() -> None:
    for name, image in (("jsonl-filter", jsonl_filter()), ("text-records", text_records())):
        small = image.resize((SIZE, SIZE), Image.Resampling.LANCZOS)
        small.save(SHIPPED / name / "icon.png", optimize=True)


if __name__ == "__main__":
    main()
