"""WebDataset shards: tar files of images and labels, with random access instead of a stream.

The headers of a tar file have the offset of each image. So shards are shuffled over the whole data set, evaluated
exactly once, and resumed within an epoch, like a folder of images.
"""

import io
import json
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from polynext.data.examples import Examples
from polynext.errors import PolyNeXtError
from polynext.files import reading
from polynext.preprocessing import IMAGE_SUFFIXES, open_picture

LONGEST_LABEL = 20  # characters


class ShardExamples(Examples):
    """Images in tar files, each with its label in a `.cls`, as the webdataset package and timm write them."""

    def __init__(self, shards: list[Path]):
        with ThreadPoolExecutor() as pool:
            found = [sample for samples in pool.map(index_shard, shards) for sample in samples]
        labels = [label for *_, label in found]
        super().__init__(labels)
        self.places = [(shard, offset, size) for shard, offset, size, _ in found]

    def image(self, index: int) -> Image.Image:
        shard, offset, size = self.places[index]
        with shard.open("rb") as file:
            file.seek(offset)
            return open_picture(io.BytesIO(file.read(size)), f"image {index}, in {shard},")


def index_shard(shard: Path) -> list[tuple[Path, int, int, int]]:
    """(shard, offset, size, label) of each image in a tar file."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    with (
        reading(f"{shard} cannot be read as a shard: expected an uncompressed tar file of images and .cls labels."),
        tarfile.open(shard, "r:") as archive,
    ):
        for member in archive:
            key, _, suffix = member.name.rpartition(".")
            if f".{suffix.lower()}" in IMAGE_SUFFIXES:
                images[key] = (member.offset_data, member.size)
            elif suffix == "cls":
                content = archive.extractfile(member)
                labels[key] = int(content.read(LONGEST_LABEL)) if content else -1
    alone = [key for key in images if key not in labels]
    if alone:
        raise PolyNeXtError(f"{shard} has images without a label: {', '.join(alone[:5])}; expected a .cls for each.")
    return [(shard, *images[key], labels[key]) for key in images]


def find_shards(root: Path, names: tuple[str, ...]) -> list[Path]:
    """The tar files of a split: those in timm's _info.json, in a folder of one of these names, or with it in theirs."""
    info = root / "_info.json"
    if info.is_file():
        with reading(f"{info} cannot be read: expected the JSON file that timm writes for shards."):
            splits = json.loads(info.read_bytes())["splits"]
            found = next((splits[name]["filenames"] for name in names if name in splits), None)
            if found is not None:
                return [root / file for file in found]
    for name in names:
        shards = sorted((root / name).glob("*.tar")) or sorted(root.glob(f"*{name}*.tar"))
        if shards:
            return shards
    raise PolyNeXtError(f"{root} has no {' or '.join(names)} shards: put its .tar files into a folder of that name.")
