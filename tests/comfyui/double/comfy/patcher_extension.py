class WrappersMP:
    PREPARE_SAMPLING = "prepare_sampling"
