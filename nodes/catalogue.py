"""All nodes by key and display name, and what is set up once when ComfyUI starts."""

from . import files, notices, sampler
from .compare_node import Compare
from .demo_node import DemoModel
from .files import LoadSolver, MergeSolvers, SaveSolver
from .info_node import SolverInfo
from .sampling_nodes import ApplySolver, KSamplerS4S, SamplerS4S
from .train_node import TrainSolver

NODE_CLASS_MAPPINGS: dict[str, type] = {
    "S4SLoadSolver": LoadSolver,
    "S4SSaveSolver": SaveSolver,
    "S4SMergeSolvers": MergeSolvers,
    "S4SSolverInfo": SolverInfo,
    "S4SApplySolver": ApplySolver,
    "S4SSampler": SamplerS4S,
    "S4SKSampler": KSamplerS4S,
    "S4STrainSolver": TrainSolver,
    "S4SCompare": Compare,
    "S4SDemoModel": DemoModel,
}

NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {
    "S4SLoadSolver": "Load Solver (S4S)",
    "S4SSaveSolver": "Save Solver (S4S)",
    "S4SMergeSolvers": "Merge Solvers (S4S)",
    "S4SSolverInfo": "Solver Info (S4S)",
    "S4SApplySolver": "Apply Solver (S4S)",
    "S4SSampler": "Sampler (S4S)",
    "S4SKSampler": "KSampler (S4S)",
    "S4STrainSolver": "Train Solver (S4S)",
    "S4SCompare": "Compare Solvers (S4S)",
    "S4SDemoModel": "Demo Model (S4S)",
}

files.register_folder()
sampler.register()
if notices.server() is not None:
    from . import routes  # needs aiohttp, which comes with the server

    routes.register()
