class CONDRegular:
    def __init__(self, cond):
        self.cond = cond
