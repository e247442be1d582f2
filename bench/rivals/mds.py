"""MosaicML Streaming without its datasets of images, which need a torchvision that fits the build of torch."""

import sys
from types import ModuleType

sys.modules.setdefault("streaming.vision", ModuleType("streaming.vision"))

import streaming  # noqa: E402 - after what it would import

__all__ = ["streaming"]
