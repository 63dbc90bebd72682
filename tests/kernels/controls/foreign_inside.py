"""A program of another architecture that reaches the guest: an ELF head for x86-64 is enough for the kernel to refuse."""

KERNELS = "7.2"
SCRIPT = r"""
printf '\177ELF\002\001\001\0\0\0\0\0\0\0\0\0\002\0\076\0\001\0\0\0' >/tmp/foreign
chmod 755 /tmp/foreign
/tmp/foreign
"""
MUST_SAY = r"^exit code 12[67]\b"
