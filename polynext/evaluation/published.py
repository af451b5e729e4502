"""The paper's robustness figures (Table 2), to stand beside what is measured. Per cent; of ImageNet-C the mCE."""

ROBUSTNESS: dict[str, dict[str, float]] = {
    name: dict(zip(("imagenet", "imagenet-c", "imagenet-a", "imagenet-r", "imagenet-sketch"), figures, strict=True))
    for name, figures in {
        "swin_tiny_patch4_window7_224": (81.3, 62.0, 21.6, 41.3, 29.1),
        "convnext_tiny": (82.1, 53.2, 24.2, 47.2, 33.8),
        "convformer_s18": (83.0, 51.7, 25.3, 48.7, 35.2),
        "caformer_s18": (83.6, 47.4, 33.5, 48.7, 36.6),
        "cpolynext_small": (83.9, 47.9, 35.1, 49.4, 37.8),
        "apolynext_small": (84.3, 45.0, 39.6, 49.7, 37.5),
        "swin_small_patch4_window7_224": (83.0, 52.7, 32.3, 45.1, 32.4),
        "convnext_small": (83.1, 51.2, 31.2, 49.5, 37.1),
        "convformer_s36": (84.1, 47.1, 33.2, 50.8, 38.4),
        "caformer_s36": (84.5, 44.7, 40.9, 51.7, 39.5),
        "cpolynext_base": (84.7, 44.5, 42.8, 52.0, 40.0),
        "apolynext_base": (84.9, 42.7, 45.5, 52.9, 41.1),
        "swin_base_patch4_window7_224": (83.5, 54.4, 35.8, 46.6, 32.4),
        "convnext_base": (83.8, 46.8, 36.7, 51.3, 38.2),
        "convformer_m36": (84.5, 46.5, 37.6, 51.0, 39.2),
        "caformer_m36": (85.2, 42.6, 45.6, 51.7, 39.6),
        "cpolynext_large": (84.9, 42.5, 48.3, 54.5, 41.8),
        "apolynext_large": (85.2, 42.9, 49.2, 54.0, 41.8),
    }.items()
}

# AlexNet's errors in per cent, by which a corruption's error is divided for the mCE.
ALEXNET_ERRORS = {
    "gaussian_noise": 88.6, "shot_noise": 89.4, "impulse_noise": 92.3, "defocus_blur": 82.0, "glass_blur": 82.6,
    "motion_blur": 78.6, "zoom_blur": 79.8, "snow": 86.7, "frost": 82.7, "fog": 81.9, "brightness": 56.5,
    "contrast": 85.3, "elastic_transform": 64.6, "pixelate": 71.8, "jpeg_compression": 60.7,
}  # fmt: skip


def published_figure(model: str, data: str) -> float | None:
    """What the paper reports for a model on a data set; None if it does not."""
    from polynext.models import PUBLISHED

    base = model.split(".")[0]
    if data in ROBUSTNESS.get(base, {}):
        return ROBUSTNESS[base][data]
    tags = {"imagenet": "in1k", "tiny-imagenet": "tiny_imagenet"}
    found = PUBLISHED.get(f"{base}.{tags.get(data, data)}")
    return found.top1 if found else None
