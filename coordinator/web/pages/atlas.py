"""The map: an outline of the world, and where on it a region stands that an operator named in a few words.

No tiles and no geocoding: ``static/world.svg`` was drawn from public-domain data once, and places are the cities where data
centres are. A region that is not among them is listed below the map.

Source of the projection: Equal Earth, Savric, Patterson and Jenny 2018, doi 10.1080/13658816.2018.1504949.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.rest.market import Region

WIDTH, HEIGHT = 1000, 427
_A1, _A2, _A3, _A4 = 1.340264, -0.081106, 0.000893, 0.003796
_EAST = 2 * math.sqrt(3) * math.pi / (3 * _A1)  # Of the equator at 180 degrees.
_NORTH = 1.275786330596676  # Of 78 degrees: the top of the drawing.
_SCALE = WIDTH / (2 * _EAST)

# Degrees north and east, to the nearest half: a region is no address.
_PLACES: dict[str, tuple[float, float]] = {
    "amsterdam": (52.5, 5),
    "ashburn": (39, -77.5),
    "atlanta": (33.5, -84.5),
    "auckland": (-37, 175),
    "bangalore": (13, 77.5),
    "bangkok": (13.5, 100.5),
    "barcelona": (41.5, 2),
    "beijing": (40, 116.5),
    "berlin": (52.5, 13.5),
    "bogota": (4.5, -74),
    "boston": (42.5, -71),
    "brussels": (51, 4.5),
    "bucharest": (44.5, 26),
    "buenos aires": (-34.5, -58.5),
    "cairo": (30, 31),
    "cape town": (-34, 18.5),
    "chennai": (13, 80.5),
    "chicago": (42, -87.5),
    "copenhagen": (55.5, 12.5),
    "dallas": (33, -97),
    "delhi": (28.5, 77),
    "denver": (39.5, -105),
    "dubai": (25, 55.5),
    "dublin": (53.5, -6.5),
    "falkenstein": (50.5, 12.5),
    "frankfurt": (50, 8.5),
    "hamburg": (53.5, 10),
    "helsinki": (60, 25),
    "hong kong": (22.5, 114),
    "istanbul": (41, 29),
    "jakarta": (-6, 107),
    "johannesburg": (-26, 28),
    "kyiv": (50.5, 30.5),
    "lagos": (6.5, 3.5),
    "las vegas": (36, -115),
    "lima": (-12, -77),
    "lisbon": (38.5, -9),
    "london": (51.5, 0),
    "los angeles": (34, -118),
    "luxembourg": (49.5, 6),
    "madrid": (40.5, -3.5),
    "manchester": (53.5, -2),
    "manila": (14.5, 121),
    "marseille": (43.5, 5.5),
    "melbourne": (-38, 145),
    "mexico city": (19.5, -99),
    "miami": (26, -80),
    "milan": (45.5, 9),
    "montreal": (45.5, -73.5),
    "moscow": (55.5, 37.5),
    "mumbai": (19, 73),
    "munich": (48, 11.5),
    "nairobi": (-1.5, 37),
    "new york": (40.5, -74),
    "nuremberg": (49.5, 11),
    "osaka": (34.5, 135.5),
    "oslo": (60, 10.5),
    "paris": (49, 2.5),
    "phoenix": (33.5, -112),
    "prague": (50, 14.5),
    "rome": (42, 12.5),
    "san francisco": (37.5, -122),
    "santiago": (-33.5, -70.5),
    "sao paulo": (-23.5, -46.5),
    "seattle": (47.5, -122),
    "seoul": (37.5, 127),
    "shanghai": (31, 121.5),
    "singapore": (1.5, 104),
    "sofia": (42.5, 23.5),
    "stockholm": (59.5, 18),
    "sydney": (-34, 151),
    "taipei": (25, 121.5),
    "tel aviv": (32, 35),
    "tokyo": (35.5, 139.5),
    "toronto": (43.5, -79.5),
    "vancouver": (49, -123),
    "vienna": (48, 16.5),
    "warsaw": (52, 21),
    "washington": (39, -77),
    "zurich": (47.5, 8.5),
}


@dataclass(frozen=True)
class RegionMark:
    """A region on the map: where, and how large its disc is, in user units."""

    region: Region
    x: float
    y: float
    radius: float


def marks(regions: Sequence[Region]) -> tuple[list[RegionMark], list[Region]]:
    """The regions that have a place on the map, the largest first so that the small ones lie on top; and the others."""
    largest = max((region.flops for region in regions), default=0.0)
    found, others = [], []
    for region in regions:
        place = place_of(region.name)
        if place is None:
            others.append(region)
        else:
            part = math.sqrt(region.flops / largest) if largest else 0.0
            found.append(RegionMark(region, *project(*place), round(6 + 16 * part, 1)))
    return sorted(found, key=lambda mark: -mark.radius), others


def place_of(name: str) -> tuple[float, float] | None:
    """Degrees north and east of the first known city that a region's name mentions."""
    words = " ".join(re.findall(r"[^\W\d_]+", name.casefold()))
    return next((place for city, place in _PLACES.items() if f" {city} " in f" {words} "), None)


def project(north: float, east: float) -> tuple[float, float]:
    """Degrees as user units of the map, from its upper left corner."""
    theta = math.asin(math.sqrt(3) / 2 * math.sin(math.radians(north)))
    square = theta * theta
    sixth = square**3
    slope = 3 * (_A1 + 3 * _A2 * square + sixth * (7 * _A3 + 9 * _A4 * square))
    x = 2 * math.sqrt(3) * math.radians(east) * math.cos(theta) / slope
    y = theta * (_A1 + _A2 * square + sixth * (_A3 + _A4 * square))
    return round((x + _EAST) * _SCALE, 1), round((_NORTH - y) * _SCALE, 1)
