// The version switch. Each version is built into a folder of its own, and a versions.json beside the folders lists them:
// ["0.3.0", "0.2.0"]. Without one, as in a build on its own, the switch shows what is there.
addEventListener("DOMContentLoaded", async () => {
  const choice = document.getElementById("versions");
  if (!choice || location.protocol === "file:") return;
  const site = new URL(choice.dataset.root || ".", location.href);
  const home = new URL("..", site);
  const answer = await fetch(new URL("versions.json", home)).catch(() => null);
  if (!answer?.ok) return;
  const versions = await answer.json();
  choice.replaceChildren(...versions.map((name) => new Option(name, name, false, name === choice.dataset.current)));
  choice.addEventListener("change", async () => {
    const page = location.href.slice(site.href.length);
    const there = new URL(`${choice.value}/${page}`, home);
    const found = await fetch(there, { method: "HEAD" }).catch(() => null);
    location.href = found?.ok ? there.href : new URL(`${choice.value}/`, home).href;
  });
});
