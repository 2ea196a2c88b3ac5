"""Build the kernel of ``consumer_coord.columns``; everything else is in pyproject.toml.

One wheel (abi3) serves every Python with a GIL; a Python without a GIL needs one per version. Without a C compiler, the package
is built without the kernel and decodes in Python.
"""

import sysconfig

from setuptools import Extension, setup

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
ABI3 = {} if FREE_THREADED else {"define_macros": [("Py_LIMITED_API", "0x030B0000")], "py_limited_api": True}

setup(
    ext_modules=[
        Extension(
            "consumer_coord.columns._kernel",
            ["consumer_coord/columns/_kernel.c"],
            depends=[f"consumer_coord/columns/_{name}.h" for name in ("rows", "messages", "at_hand", "receive")],
            optional=True,
            extra_compile_args=["-std=c11", "-O3"],
            **ABI3,
        )
    ],
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
