"""Every node by key and by the name that people see, and what happens once when ComfyUI starts."""

from . import library, notices, register
from .applying import ApplySolver, KSamplerS4S, SamplerS4S
from .compare import Compare
from .demo import DemoModel
from .files import LoadSolver, MergeSolvers, SaveSolver
from .info import SolverInfo
from .train import TrainSolver

NODE_CLASS_MAPPINGS = {
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

NODE_DISPLAY_NAME_MAPPINGS = {
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

library.register_folder()
register.stock_names()
if notices.server() is not None:
    from . import routes  # needs aiohttp, which comes with the server

    routes.register()
