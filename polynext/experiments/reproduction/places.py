"""Whether data sets are where a user says, before anything is fetched or run for them."""

from pathlib import Path

from polynext.data import DataConfig
from polynext.errors import PolyNeXtError
from polynext.evaluation import ALL_NAMES
from polynext.evaluation.corruptions import CORRUPTIONS, SEVERITIES
from polynext.evaluation.sets import corrupted_folder, open_set
from polynext.segmentation import SegmentationDataConfig
from polynext.segmentation.data import load_pairs

PLACES = (*ALL_NAMES, "ade20k")


def require_data(name: str, place: Path) -> None:
    """Raises unless what a table evaluates on is there, and whole as far as its folders tell."""
    if name not in PLACES:
        raise PolyNeXtError(f"--data {name}=... is none of the data sets: {', '.join(PLACES)}.")
    if not place.exists():
        raise PolyNeXtError(f"--data {name}={place}: there is no such file or folder.")
    data = DataConfig(root=place)
    try:
        if name == "ade20k":
            load_pairs(SegmentationDataConfig(name="ade20k", root=place), "val")
        elif name == "imagenet-c":
            for corruption in CORRUPTIONS:
                for severity in SEVERITIES:
                    corrupted_folder(data, corruption, severity)
        else:
            open_set(name.removesuffix("-c"), data)
    except PolyNeXtError as error:
        raise PolyNeXtError(f"--data {name}={place}: {error}") from error
