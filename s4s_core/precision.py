"""Double precision, also for results on devices that have none."""

WITHOUT_FLOAT64 = ("mps",)
"""Types of devices, Apple's, that raise an error where float64 is asked of them."""


def as_float64(x):
    """x in float64: where it is, or on the CPU if its device has no float64."""
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).double()
