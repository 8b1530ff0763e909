"""The error of an image that cannot be used."""


class ImageRefused(Exception):
    """Raised for an image that is broken, too large or of a shape that the model cannot take. The text says what is
    wrong with it and what to do, without the name of the request's field."""
