"""Why an image is not taken."""


class ImageFormatError(ValueError):
    """It is no image, one that cannot run here, or one that nobody can answer for. The text names the fault and the way out."""
