"""A figure names its chip, whichever way Linux says it."""

import pytest

from onepass.evidence.cpu_name import name_in

ARM = (
    "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: {}\nCPU architecture: 8\nCPU part\t: {}\n\nprocessor\t: 1\n"
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Processor @ 2.50GHz\n",
            "Intel(R) Xeon(R) Processor @ 2.50GHz",
        ),
        (ARM.format("0x41", "0xd0c"), "Neoverse-N1"),
        (ARM.format("0x41", "0xfff"), "ARM CPU part 0xfff"),
        (ARM.format("0x61", "0x022"), "Apple CPU part 0x022"),
        (ARM.format("0x99", "0x022"), "0x99 CPU part 0x022"),
        ("processor\t: 0\n", "cpu"),
    ],
)
def test_the_name_of_a_cpu(text: str, name: str) -> None:
    assert name_in(text) == name
