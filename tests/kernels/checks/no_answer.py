"""A kernel whose tracing has died: each command that would touch it says so and ends, with an exit status of its own."""

import struct

import boot

KERNELS = "7.2"
ALSO = "6.12"
BOOT = {"limit": 600}
SECONDS = 100
# The kernel's own fault: of an event with two places, one is removed while it is in use, and then hit.
SCRIPT = """
cd /sys/kernel/tracing
place=/job/ggml-runner:$(cat /job/entry)
echo "p:g/e $place" >>uprobe_events
echo "p:g/e /job/ggml-runner:$(cat /job/behind)" >>uprobe_events
echo 1 >events/g/e/enable
ggml-runner --version >/dev/null
# Refused for the second place, after the first is gone.
echo "-:g/e" >>uprobe_events || true
oops() { [ $(($(cat /proc/sys/kernel/tainted) >> 7 & 1)) = 1 ]; }
# No more than one: each writes to memory that is another's by now, until the guest stands still.
for i in $(seq 200); do oops && break; (ggml-runner --version >/dev/null 2>&1) || true; done &
within 60 oops
# Waits, for ever, for what died in the hit, and has the lock of the list.
(echo 0 >events/g/e/enable) &
within 60 'grep -q "^State:.D" /proc/$!/status'
cd /out
cat /proc/sys/kernel/tainted >tainted.txt
: >/tmp/m.gguf
# By themselves, record and top would do without the kernel.
for command in "doctor" "record --source bpf -o /tmp/a.pfi -- true" "top --source bpf -- true" "tune -- ggml-runner run -m /tmp/m.gguf" "selftest" \
    "serve --directory /tmp/s"; do
    name=${command%% *}
    timeout -s KILL 100 profinfer $command >said-$name.txt 2>&1 && echo 0 >code-$name.txt || echo $? >code-$name.txt
done
"""


def prepare(guest):
    """The file offsets of the runner's first and second instruction."""
    head = guest.files["/job/ggml-runner"].read_bytes()
    entry, table = struct.unpack_from("<QQ", head, 24)
    size, number = struct.unpack_from("<HH", head, 54)
    for i in range(number):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", head, table + i * size)
        if kind == 1 and address <= entry < address + length:
            for name, at in [("entry", entry), ("behind", entry + 4)]:
                (guest.out / name).write_text(hex(at - address + offset))
                guest.files[f"/job/{name}"] = guest.out / name
            return
    raise boot.Unusable("the runner's entry point is in no segment")


def judge(run, book):
    book.expect(int(run.text("tainted.txt")) & 1 << 7, "the kernel had no oops: the check proves nothing")
    for name in ["doctor", "record", "top", "tune", "selftest", "serve"]:
        code, said = int(run.text(f"code-{name}.txt")), run.text(f"said-{name}.txt")
        book.expect(code == 4 and "does not answer" in said, f"{name}: {code}: {said}")
