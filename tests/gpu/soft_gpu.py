"""The part of a GPU in software that a guest has when it starts: nodes of its device tree, and registers that are memory
which the kernel does not use. soft_gpu.c does the device's work."""

import struct

REGISTERS, SIZE = 0x70000000, 0x10000
SPI = 200
MEMORY = f"""
reserved-memory {{
    #address-cells = <2>; #size-cells = <2>; ranges;
    registers@{REGISTERS:x} {{ reg = <0 {REGISTERS:#x} 0 {SIZE:#x}>; no-map; }};
}};
GPUCLOCK: gpu-clock {{ compatible = "fixed-clock"; #clock-cells = <0>; clock-frequency = <500000000>; }};
"""
COMMON = "clocks = <&GPUCLOCK>;"
# Mali T860: job, MMU and GPU interrupts.
PANFROST = f"""{MEMORY}
gpu@{REGISTERS:x} {{
    compatible = "arm,mali-t860"; {COMMON}
    reg = <0 {REGISTERS:#x} 0 {SIZE:#x}>;
    interrupts = <0 {SPI} 4>, <0 {SPI + 1} 4>, <0 {SPI + 2} 4>; interrupt-names = "job", "mmu", "gpu";
}};
"""
# V3D 4.2: the hub's interrupt and that of the core.
V3D = f"""{MEMORY}
gpu@{REGISTERS:x} {{
    compatible = "brcm,2711-v3d"; {COMMON}
    reg = <0 {REGISTERS:#x} 0 0x4000>, <0 {REGISTERS + 0x4000:#x} 0 0x4000>, <0 {REGISTERS + 0x8000:#x} 0 0x1000>;
    reg-names = "hub", "core0", "bridge";
    interrupts = <0 {SPI} 4>, <0 {SPI + 1} 4>;
}};
"""
# Registers with a value: what the device is, and that what the driver waits for has always happened.
PANFROST_REGISTERS = {
    0x000: 0x08602000,  # GPU_ID
    0x014: 0x2830,  # MMU_FEATURES: 40 bits of physical and 48 of virtual addresses
    0x018: 0xFF,  # AS_PRESENT
    0x01C: 0x7,  # JS_PRESENT
    0x020: 1 << 8,  # GPU_INT_RAWSTAT: RESET_COMPLETED
    0x100: 1, 0x110: 1, 0x120: 1,  # SHADER_PRESENT, TILER_PRESENT, L2_PRESENT
    0x140: 1, 0x150: 1, 0x160: 1,  # the same, READY
}  # fmt: skip
V3D_REGISTERS = {
    0x00C: 0x20124,  # HUB_IDENT1: version 4.2, one core, TFU
    0x1238: 0xA20,  # MMU_DEBUG_INFO: 40 bits of physical and 32 of virtual addresses
    0x8000: 0x700,  # TOP_GR_BRIDGE_REVISION
}
DEVICES = {"panfrost": (PANFROST, PANFROST_REGISTERS), "v3d": (V3D, V3D_REGISTERS)}


def registers(name):
    """The memory's content."""
    found = bytearray(SIZE)
    for at, value in DEVICES[name][1].items():
        struct.pack_into("<I", found, at, value)
    return bytes(found)
