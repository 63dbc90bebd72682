"""A program of another architecture that reaches the guest: the kernel rejects it because of its x86-64 ELF
header."""

KERNELS = "7.2"
SCRIPT = r"""
printf '\177ELF\002\001\001\0\0\0\0\0\0\0\0\0\002\0\076\0\001\0\0\0' >/tmp/foreign
chmod 755 /tmp/foreign
/tmp/foreign
"""
MUST_SAY = r"^exit code 12[67]\b"
