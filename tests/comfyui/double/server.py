class PromptServer:
    """No server runs in the double."""
