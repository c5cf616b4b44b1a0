// The page of `duoplda serve`. Texts of the registry become text nodes or `textContent`, and never HTML.
"use strict";

const by = (id) => document.getElementById(id);
const PAGE_SIZE = 100;
const state = { token: "", audio: false, file: null, shown: 0, total: 0, voice: null };

// -- asking the service

class Refusal extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function ask(method, path, query = {}, body = null) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== "");
  const headers = {};
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  if (body !== null) headers["Content-Type"] = mediaType(body);
  const address = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  let response;
  try {
    response = await fetch(address, { method, headers, body });
  } catch {
    throw new Refusal(0, "The service does not answer. Is it still running?");
  }
  if (response.status === 204) return null;
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refusal(response.status, content.detail || `The service answered ${response.status}.`);
  return content;
}

// Where the service takes audio, a file that is not an array is sent as audio; its bytes tell the format.
const mediaType = (file) => {
  if (!state.audio || /\.np[yz]$/i.test(file.name)) return "application/octet-stream";
  return file.type.startsWith("audio/") ? file.type : "audio/unknown";
};

// -- putting text in place

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children); // strings become text nodes
  return made;
}

// Names stand in <bdi>, so that a name that is written from right to left does not turn the text beside it.
const named = (name) => element("bdi", {}, name);

const percent = (p) => {
  if (p > 0.9999) return "> 99.99 %";
  if (p < 0.0001) return "< 0.01 %";
  return `${(100 * p).toPrecision(p >= 0.999 ? 4 : p >= 0.1 ? 3 : 2)} %`;
};
const day = (iso) => new Date(iso).toLocaleDateString(undefined, { dateStyle: "medium" });
const many = (n, one, more = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : more}`;

function complain(error) {
  if (error.status === 401) {
    askForToken(state.token ? "This token is not known." : "");
    return;
  }
  by("message").textContent = error.message;
  by("message").hidden = false;
  by("message").focus();
  if (!(error instanceof Refusal)) console.error(error);
}

function guarded(work) {
  return async (event) => {
    if (event) event.preventDefault();
    by("message").hidden = true;
    by("done").textContent = "";
    try {
      await work(event);
    } catch (error) {
      complain(error);
    }
  };
}

// -- the token

function askForToken(why) {
  by("work").hidden = true;
  by("access").hidden = false;
  by("count").textContent = why;
  by("token").value = "";
  by("token").focus();
}

by("token-form").addEventListener("submit", guarded(async () => {
  state.token = by("token").value.trim();
  await begin();
}));

// -- voices

async function showVoices(add = false) {
  const offset = add ? state.shown : 0;
  const search = by("search").value;
  const answer = await ask("GET", "voices", { search, offset, limit: PAGE_SIZE });
  if (search !== by("search").value) return; // a later search is under way
  const rows = answer.voices.map((voice) => {
    const button = element("button", { type: "button", "aria-expanded": "false" }, named(voice.name));
    button.addEventListener("click", guarded(() => showVoice(voice.name, true)));
    const row = element(
      "tr", {},
      element("th", { scope: "row" }, button),
      element("td", { class: "number" }, voice.n_sessions.toLocaleString("en")),
      element("td", { class: "number" }, voice.n_recordings.toLocaleString("en")),
      element("td", { class: "wide" }, day(voice.changed)),
    );
    row.voice = voice.name;
    return row;
  });
  const body = by("voices").tBodies[0];
  if (add) body.append(...rows);
  else body.replaceChildren(...rows);
  state.shown = offset + rows.length;
  state.total = answer.total;
  by("names").replaceChildren(...[...body.rows].slice(0, 50).map((row) => element("option", { value: row.voice })));
  by("found").textContent = search
    ? `${many(answer.total, "voice")} with "${search}" in the name`
    : answer.total ? "" : "No voice is known yet. Choose a file above, and enrol the first voice.";
  if (!search) by("count").textContent = many(answer.total, "voice");
  by("more").hidden = state.shown >= state.total;
  mark();
}

function mark() {
  for (const row of by("voices").tBodies[0].rows) {
    const open = row.voice === state.voice;
    row.toggleAttribute("aria-current", open);
    row.querySelector("button").setAttribute("aria-expanded", String(open));
  }
}

async function showVoice(name, focus) {
  const voice = await ask("GET", "voice", { name });
  state.voice = voice.name;
  by("voice-title").replaceChildren(named(voice.name));
  by("voice-facts").textContent =
    `${many(voice.n_sessions, "session")} with ${many(voice.n_recordings, "recording")}, known since ${day(voice.created)}`;
  by("sessions").tBodies[0].replaceChildren(...voice.sessions.map((session) => {
    const note = element("div", { class: "note" }, `added ${day(session.added)}`);
    if (session.by !== null) note.append(" by ", named(session.by));
    const button = element("button", { type: "button", class: "danger" }, "Remove");
    button.append(element("span", { class: "unseen" }, ` session ${session.name}`));
    button.addEventListener("click", guarded(() => removeSession(voice, session)));
    return element(
      "tr", {},
      element("th", { scope: "row" }, named(session.name), note),
      element("td", { class: "number" }, session.n_recordings.toLocaleString("en")),
      element("td", { class: "number" }, button),
    );
  }));
  by("new-name").value = voice.name;
  by("voice").hidden = false;
  mark();
  if (focus) by("voice-title").focus();
}

function closeVoice() {
  const row = [...by("voices").tBodies[0].rows].find((other) => other.voice === state.voice);
  state.voice = null;
  by("voice").hidden = true;
  mark();
  (row ? row.querySelector("button") : by("search")).focus();
}

function confirmed(title, words, verb, danger) {
  by("confirm-title").textContent = title;
  by("confirm-text").replaceChildren(...words);
  by("confirm-yes").textContent = verb;
  by("confirm-yes").classList.toggle("danger", danger);
  const dialog = by("confirm");
  dialog.returnValue = "no";
  dialog.showModal();
  by("confirm-no").focus(); // so that pressing Enter once too often removes nothing
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function removeSession(voice, session) {
  const words = ["Session ", named(session.name), " of ", named(voice.name),
    ` has ${many(session.n_recordings, "recording")}. The voice will be as if they had never been added.`];
  if (!await confirmed("Remove a session?", words, "Remove", true)) return;
  await ask("DELETE", "voice/session", { name: voice.name, session: session.name });
  by("done").textContent = "The session is removed.";
  await showVoices();
  if (voice.n_sessions > 1) await showVoice(voice.name, true);
  else await showVoice(voice.name, true).catch(closeVoice);
  await identify();
}

by("remove").addEventListener("click", guarded(async () => {
  const name = state.voice;
  const words = [named(name), " and all sessions of this voice will be removed. This cannot be undone."];
  if (!await confirmed("Remove a voice?", words, "Remove", true)) return;
  await ask("DELETE", "voice", { name });
  await showVoices();
  closeVoice();
  by("done").textContent = "The voice is removed.";
  await identify();
}));

by("rename").addEventListener("submit", guarded(async () => {
  const to = by("new-name").value;
  if (to === state.voice) return;
  const voice = await ask("PATCH", "voice", { name: state.voice, to });
  await showVoices();
  await showVoice(voice.name, true);
  await identify();
}));

by("close").addEventListener("click", closeVoice);
by("more").addEventListener("click", guarded(() => showVoices(true)));
let typing = 0;
by("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(guarded(() => showVoices()), 150);
});

// -- a file, and who it is

function take(file) {
  if (!file) return;
  state.file = file;
  by("file-name").textContent = file.name;
  guarded(identify)();
}

by("file").addEventListener("change", () => take(by("file").files[0]));
for (const kind of ["dragenter", "dragover"]) {
  by("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    by("drop").classList.add("over");
  });
}
by("drop").addEventListener("dragleave", () => by("drop").classList.remove("over"));
by("drop").addEventListener("drop", (event) => {
  event.preventDefault();
  by("drop").classList.remove("over");
  take(event.dataTransfer.files[0]);
});
// Without this, a file that is dropped beside the field would replace the page.
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());

const prior = () => 1 / (1 + Math.exp(-Number(by("prior").value)));
// A decision is made if its expected cost is below that of leaving the question open, which is 1.
const costs = () => {
  const wrong = (1 / (1 - Number(by("sure").value))).toPrecision(6);
  return { cost_wrong_name: wrong, cost_missed: wrong, cost_unsure: 1 };
};
const sessionMode = () => document.querySelector("input[name=sessions]:checked").value;

function showPrior() {
  by("prior-value").textContent = percent(prior());
  by("prior").setAttribute("aria-valuetext", percent(prior()));
}

// The service computes the answer for each position of the slider; one question is under way at a time.
let asking = false;
let changed = false;
async function identify() {
  if (!state.file) return;
  if (asking) {
    changed = true;
    return;
  }
  asking = true;
  by("answer").setAttribute("aria-busy", "true");
  try {
    do {
      changed = false;
      const session = sessionMode() === "one" ? "1" : null;
      const known = prior().toPrecision(6);
      const answer = await ask("POST", "identify", { known, session, k: 10, ...costs() }, state.file);
      if (!changed) showAnswer(answer);
    } while (changed);
  } catch (error) {
    by("answer").replaceChildren();
    throw error;
  } finally {
    asking = false;
    by("answer").setAttribute("aria-busy", "false");
  }
}

function verdict(answer) {
  if (answer.decision === "accept") {
    const first = answer.candidates.find((candidate) => candidate.name === answer.name);
    return ["This is ", named(answer.name), ` (${percent(first.posterior)}).`];
  }
  if (answer.decision === "nobody") return [`This is none of the known voices (${percent(answer.someone_else)}).`];
  const first = answer.candidates[0];
  return first
    ? ["Not sure: it may be ", named(first.name), ` (${percent(first.posterior)}), or somebody else (${percent(answer.someone_else)}).`]
    : ["Not sure: no voice is known yet."];
}

function bar(llr, largest) {
  const half = 50 * Math.min(1, Math.abs(llr) / largest);
  const fill = element("i", { class: llr < 0 ? "against" : "for" });
  fill.style.width = `${half}%`;
  fill.style.left = `${llr < 0 ? 50 - half : 50}%`;
  return element("div", { class: "bar", "aria-hidden": "true" }, fill);
}

function showAnswer(answer) {
  const marks = { accept: "\u2713 ", unsure: "? ", nobody: "\u2717 " };
  const parts = [element("p", { class: `verdict ${answer.decision}` }, marks[answer.decision], ...verdict(answer))];
  if (answer.domain_warning) parts.push(element("p", { class: "warning" }, `Beware: ${answer.domain_warning}`));
  if (answer.candidates.length) {
    const largest = Math.max(10, ...answer.candidates.map((candidate) => Math.abs(candidate.llr)));
    const rows = answer.candidates.map((candidate) => element(
      "tr", candidate.name === answer.name ? { class: "accepted" } : {},
      element("th", { scope: "row" }, named(candidate.name)),
      element("td", { class: "number" }, candidate.llr.toFixed(1).replace("-", "\u2212")),
      element("td", { class: "where" }, bar(candidate.llr, largest)),
      element("td", { class: "number" }, percent(candidate.posterior)),
    ));
    rows.push(element(
      "tr", {}, element("th", { scope: "row" }, "somebody else"), element("td"), element("td"),
      element("td", { class: "number" }, percent(answer.someone_else)),
    ));
    const head = element("thead", {}, element(
      "tr", {}, element("th", { scope: "col" }, "Voice"), element("th", { scope: "col", class: "number" }, "Nats"),
      element("th", { scope: "col" }, "Against / for"), element("th", { scope: "col", class: "number" }, "Probability"),
    ));
    const caption = element("caption", { class: "unseen" }, "The likeliest voices, with log-likelihood ratios and posterior probabilities");
    parts.push(element("div", { class: "scroll" }, element("table", { class: "bars" }, caption, head, element("tbody", {}, ...rows))));
    parts.push(element("p", { class: "note" }, "The log-likelihood ratio in nats is the evidence of the recordings alone. The probability also depends on the probability before listening."));
  }
  by("answer").replaceChildren(...parts);
}

by("ask").addEventListener("submit", guarded(identify));
by("prior").addEventListener("input", () => {
  showPrior();
  guarded(identify)();
});
for (const choice of document.querySelectorAll("input[name=sessions], #sure")) choice.addEventListener("change", guarded(identify));

// -- enrolment

by("enrol").addEventListener("submit", guarded(async () => {
  if (!state.file) throw new Refusal(0, "Choose a file first.");
  const name = by("name").value;
  const session = by("session").value;
  const words = ["The recordings of ", named(state.file.name), " will be added to ", named(name)];
  words.push(...(session ? [" as session ", named(session), "."] : [", each as a session of its own, unless the file names their sessions."]));
  if (!await confirmed("Enrol?", words, "Enrol", false)) return;
  const voice = await ask("POST", "voice", { name, session }, state.file);
  by("session").value = "";
  await showVoices();
  await showVoice(voice.name, false);
  by("done").replaceChildren(
    named(voice.name), ` has ${many(voice.n_sessions, "session")} with ${many(voice.n_recordings, "recording")} now.`,
  );
  await identify();
}));

// -- the beginning

async function begin() {
  state.audio = (await ask("GET", "ready")).audio;
  by("file").accept = state.audio ? ".npz,.npy,audio/*" : ".npz,.npy";
  by("audio-hint").hidden = !state.audio;
  await showVoices();
  by("access").hidden = true;
  by("work").hidden = false;
}

showPrior();
guarded(begin)();
