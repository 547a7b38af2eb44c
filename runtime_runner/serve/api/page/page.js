// A chat that shows which tokens were drafted. Talks to the API of the server that it came from.

import { Pictures, thumbnail } from "./pictures.js";

const $ = (id) => document.getElementById(id);
const state = { model: "", turns: [], asked: null, reading: null };
const pictures = new Pictures($("pictures"), show);

const headers = () => ({
  "Content-Type": "application/json",
  ...($("key").value ? { Authorization: `Bearer ${$("key").value}` } : {}),
});

async function failure(response) {
  if (response.status === 401) $("keys").hidden = false;
  const body = await response.json().catch(() => ({}));
  return new Error(body.error?.message ?? `the server says ${response.status}`);
}

async function findModel() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) throw await failure(response);
  state.model = (await response.json()).data[0].id;
  $("model").textContent = document.title = state.model;
}

function settings() {
  const drafts = $("drafts").value;
  return {
    speculate: $("speculate").checked,
    ...(drafts ? JSON.parse(drafts) : {}),
    temperature: Number($("temperature").value),
    seed: Number($("seed").value),
    max_tokens: Number($("longest").value),
  };
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice("data: ".length));
    }
  }
}

function article(kind) {
  const found = document.createElement("article");
  found.className = kind;
  $("chat").append(found);
  return found;
}

function span(kind, text) {
  const found = document.createElement("span");
  found.className = kind;
  found.textContent = text;
  return found;
}

function describe(number, trace) {
  if (!trace.drafted) return `round ${number}: one token of the target's own`;
  const ranks = trace.ranks.length ? `, by rank among siblings ${trace.ranks.join(" ")}` : "";
  const shown = trace.tokens.map(({ text }) => JSON.stringify(text)).join(" ");
  return `round ${number}: ${trace.drafted} drafted, ${trace.accepted} accepted${ranks}\n${shown}`;
}

function addRound(where, number, trace) {
  const round = span("round", "");
  trace.tokens.forEach(({ text }, i) => {
    round.append(span(i < trace.accepted ? "draft" : "target", text));
  });
  round.tabIndex = 0;
  const show = () => {
    $("round").hidden = false;
    $("round").textContent = describe(number, trace);
  };
  round.addEventListener("pointerenter", show);
  round.addEventListener("focus", show);
  where.append(round);
}

function measure(counts, started) {
  const seconds = (performance.now() - started) / 1000;
  const tau = counts.rounds ? counts.emitted / counts.rounds : null;
  $("speed").textContent = seconds > 0 ? (counts.tokens / seconds).toFixed(0) : "–";
  $("tau").textContent = tau === null ? "–" : tau.toFixed(2);
  $("count").textContent = counts.tokens;
  return { seconds, tau };
}

async function answer(asked, where) {
  state.reading = new AbortController();
  const body = { model: state.model, stream: true, trace: true, ...asked };
  const response = await fetch("v1/chat/completions", {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal: state.reading.signal,
  });
  if (!response.ok) throw await failure(response);
  const counts = { tokens: 0, rounds: 0, emitted: 0 };
  let text = "", started = null;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    text += event.choices[0]?.delta.content ?? "";
    if (!event.trace) continue;
    started ??= performance.now(); // tokens behind the first, as all our figures are
    if (counts.tokens) {
      counts.rounds += 1;
      counts.emitted += event.trace.tokens.length;
    }
    counts.tokens += event.trace.tokens.length;
    addRound(where, counts.rounds, event.trace);
    measure(counts, started);
    $("chat").scrollTop = $("chat").scrollHeight;
  }
  return { text, ...measure(counts, started ?? performance.now()), tokens: counts.tokens };
}

async function run(asked) {
  const where = article("assistant");
  busy(true);
  try {
    const found = await answer(asked, where);
    const footer = document.createElement("footer");
    const way = asked.speculate ? "speculating" : "plainly";
    footer.textContent = `${way}: ${found.tokens} tokens in ${found.seconds.toFixed(2)} s`;
    where.append(footer);
    return { ...found, footer };
  } catch (error) {
    if (error.name !== "AbortError") {
      where.classList.add("failed");
      where.append(error.message);
    }
    return null;
  } finally {
    busy(false);
  }
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("again").disabled = on || !state.asked;
  if (!on) $("text").focus();
}

function turn(text, urls) {
  article("user").append(...urls.map((url, i) => thumbnail(url, `picture ${i + 1}`)), text);
  const parts = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: urls.length ? [...parts, { type: "text", text }] : text };
}

async function send() {
  const text = $("text").value.trim();
  if (!text) return;
  $("text").value = "";
  const messages = [...state.turns, turn(text, pictures.take())];
  state.asked = { messages, ...settings() };
  state.found = await run(state.asked);
  if (state.found) {
    state.turns = [...messages, { role: "assistant", content: state.found.text }];
  } else {
    state.asked = null;
    busy(false);
  }
}

async function again() {
  const before = state.found;
  state.asked = { ...state.asked, speculate: !state.asked.speculate };
  const found = await run(state.asked);
  if (!found || !before) return;
  const same = found.text === before.text;
  found.footer.textContent += same ? ", the same text" : ", ANOTHER TEXT: please report this";
  state.found = found;
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if ($("stop").hidden) send();
  }
});
pictures.listen($("attach"), $("files"), $("text"));
$("stop").addEventListener("click", () => state.reading?.abort());
$("again").addEventListener("click", again);
$("key").addEventListener("change", () => findModel().catch(show));
$("reset").addEventListener("click", () => {
  state.reading?.abort();
  state.turns = [];
  state.asked = null;
  pictures.take();
  $("chat").replaceChildren();
  $("round").hidden = true;
  busy(false);
});

function show(error) {
  article("failed").textContent = error.message;
}

findModel().catch(show);
