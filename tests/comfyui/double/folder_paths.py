import os

models_dir = os.path.join(os.environ["DOUBLE_BASE"], "models")
folder_names_and_paths = {}


def add_model_folder_path(folder_name, full_folder_path, is_default=False):
    paths, _ = folder_names_and_paths.setdefault(folder_name, ([], set()))
    if full_folder_path not in paths:
        paths.insert(0 if is_default else len(paths), full_folder_path)
