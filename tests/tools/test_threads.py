"""Every kernel runs on std::threads, which the thread sanitizer can follow (`make tsan`)."""

import re


def test_every_kernel_is_in_a_threads_test(root):
    tests = "".join(path.read_text() for path in root.glob("src/cortado/**/threads_test.cpp"))
    declared = {
        (path.parent.name, name)
        for path in root.glob("src/cortado/**/kernel.h")
        for name in re.findall(r"^\w+ (\w+)\([^;]*\bParallel&[^;]*\);", path.read_text(), re.M)
    }
    assert len(declared) > 15
    missing = {(folder, name) for folder, name in declared if not re.search(rf"\b{name}\(", tests)}
    assert not missing
