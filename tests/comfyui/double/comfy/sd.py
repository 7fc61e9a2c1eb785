class VAE:
    """The pixel-space VAE."""

    def __init__(self, sd):
        assert "pixel_space_vae" in sd

    def decode(self, samples):
        return (samples.movedim(1, -1) / 2 + 0.5).clamp(0, 1)

    def spacial_compression_decode(self):
        return 1
