def validate_node_input(received_type, input_type, strict=False):
    return received_type == input_type or "*" in (received_type, input_type)
