from contextlib import contextmanager


class ModelPatcher:
    def __init__(self, model, load_device, offload_device):
        self.model, self.load_device, self.offload_device = model, load_device, offload_device
        self.model_options, self.patches = {"transformer_options": {}}, {}
        self.object_patches, self.wrappers = {}, {}

    def clone(self):
        copy = ModelPatcher(self.model, self.load_device, self.offload_device)
        copy.model_options = {
            "transformer_options": dict(self.model_options["transformer_options"])
        }
        copy.patches, copy.object_patches = dict(self.patches), dict(self.object_patches)
        copy.wrappers = dict(self.wrappers)
        return copy

    def add_object_patch(self, name, value):
        self.object_patches[name] = value

    def add_wrapper_with_key(self, kind, key, wrapper):
        self.wrappers = self.wrappers | {kind: {key: [wrapper]}}

    def model_size(self):
        return sum(p.nbytes for p in self.model.parameters())

    def get_model_object(self, name):
        return self.object_patches.get(name, getattr(self.model, name))

    @contextmanager
    def loaded(self):
        """The model with its object patches applied."""
        before = {name: getattr(self.model, name) for name in self.object_patches}
        for name, value in self.object_patches.items():
            setattr(self.model, name, value)
        try:
            yield self.model
        finally:
            for name, value in before.items():
                setattr(self.model, name, value)
