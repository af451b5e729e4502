"""`polynext encrypted`: plan and prepare a network (`planning.py`), ask for predictions and answer."""

from polynext.cli.commands import Command, Commands

HERE = "polynext.cli.encrypted"
# Former names of options.
PACKED = {"--images": "--packed"}
SERVE = {"--data": "--store", "--workers": "--parallel", "--keys": "--key-sets"}
commands = Commands(
    "polynext encrypted",
    "Run a fully polynomial network on encrypted images.",
    {
        "demo": Command("all steps below, on test images of a shipped network, with a figure", f"{HERE}.planning:demo"),
        "design": Command("networks for photographs: what each takes encrypted, and learns", f"{HERE}.design:main"),
        "fit": Command("your own images: propose, train and prepare a network in a budget", f"{HERE}.fit:main"),
        "plan": Command("estimate what a trained network costs encrypted", f"{HERE}.planning:plan", PACKED),
        "prepare": Command(
            "server: compile a trained network, and write a client spec", f"{HERE}.planning:prepare", PACKED
        ),
        "keygen": Command("client: make keys for a client spec", f"{HERE}.client:keygen"),
        "encrypt": Command("client: encrypt images into a request", f"{HERE}.client:encrypt"),
        "run": Command("server: compute on a request", f"{HERE}.server:answer", {"--processes": "--threads"}),
        "decrypt": Command("client: decrypt an answer", f"{HERE}.client:decrypt"),
        "serve": Command(
            "server: serve networks over HTTP; by default the MNIST network", f"{HERE}.server:serve", SERVE
        ),
        "ask": Command("client: classify images with a service", f"{HERE}.client:ask", {"--offer": "--network"}),
    },
)
