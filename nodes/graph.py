"""Reading a prompt: the graph as it is posted, {id: {class_type, inputs}}, links as [id, slot]."""


def ancestors(graph, node):
    """{id: entry} of a node and of everything that it depends on."""
    found, waiting = {}, [str(node)]
    while waiting:
        name = waiting.pop()
        entry = graph.get(name)
        if name in found or not isinstance(entry, dict):
            continue
        found[name] = entry
        inputs = entry.get("inputs")
        values = inputs.values() if isinstance(inputs, dict) else ()
        waiting += [str(v[0]) for v in values if isinstance(v, list) and len(v) == 2]
    return found


def class_of(entry):
    return entry.get("class_type")


def literal(entry, name):
    """The value of an input that is not a link, or None."""
    inputs = entry.get("inputs")
    value = inputs.get(name) if isinstance(inputs, dict) else None
    return None if isinstance(value, list) else value
