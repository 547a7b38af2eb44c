// A chat that shows which tokens were drafted. Talks to the API of the server that it came from.

import { Images, thumbnail } from "./images.js";

const $ = (id) => document.getElementById(id);
const state = { model: "", turns: [], request: null, reading: null };
const images = new Images($("images"), show);

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
  const element = document.createElement("article");
  element.className = kind;
  $("chat").append(element);
  return element;
}

function span(kind, text) {
  const element = document.createElement("span");
  element.className = kind;
  element.textContent = text;
  return element;
}

function describe(number, trace) {
  if (!trace.drafted) return `round ${number}: one token of the target's own`;
  const ranks = trace.ranks.length ? `, by rank among siblings ${trace.ranks.join(" ")}` : "";
  const shown = trace.tokens.map(({ text }) => JSON.stringify(text)).join(" ");
  return `round ${number}: ${trace.drafted} drafted, ${trace.accepted} accepted${ranks}\n${shown}`;
}

function addRound(container, number, trace) {
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
  container.append(round);
}

function measure(counts, started) {
  const seconds = (performance.now() - started) / 1000;
  const tau = counts.rounds ? counts.emitted / counts.rounds : null;
  $("speed").textContent = seconds > 0 ? (counts.tokens / seconds).toFixed(0) : "–";
  $("tau").textContent = tau === null ? "–" : tau.toFixed(2);
  $("count").textContent = counts.tokens;
  return { seconds, tau };
}

async function answer(request, container) {
  state.reading = new AbortController();
  const body = { model: state.model, stream: true, trace: true, ...request };
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
    started ??= performance.now(); // tokens after the first, as all our figures are
    if (counts.tokens) {
      counts.rounds += 1;
      counts.emitted += event.trace.tokens.length;
    }
    counts.tokens += event.trace.tokens.length;
    addRound(container, counts.rounds, event.trace);
    measure(counts, started);
    $("chat").scrollTop = $("chat").scrollHeight;
  }
  return { text, ...measure(counts, started ?? performance.now()), tokens: counts.tokens };
}

async function run(request) {
  const container = article("assistant");
  busy(true);
  try {
    const result = await answer(request, container);
    const footer = document.createElement("footer");
    const way = request.speculate ? "speculating" : "plainly";
    footer.textContent = `${way}: ${result.tokens} tokens in ${result.seconds.toFixed(2)} s`;
    container.append(footer);
    return { ...result, footer };
  } catch (error) {
    if (error.name !== "AbortError") {
      container.classList.add("failed");
      container.append(error.message);
    }
    return null;
  } finally {
    busy(false);
  }
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("again").disabled = on || !state.request;
  if (!on) $("text").focus();
}

function turn(text, urls) {
  article("user").append(...urls.map((url, i) => thumbnail(url, `image ${i + 1}`)), text);
  const parts = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: urls.length ? [...parts, { type: "text", text }] : text };
}

async function send() {
  const text = $("text").value.trim();
  if (!text) return;
  $("text").value = "";
  const messages = [...state.turns, turn(text, images.take())];
  state.request = { messages, ...settings() };
  state.answer = await run(state.request);
  if (state.answer) {
    state.turns = [...messages, { role: "assistant", content: state.answer.text }];
  } else {
    state.request = null;
    busy(false);
  }
}

async function again() {
  const before = state.answer;
  state.request = { ...state.request, speculate: !state.request.speculate };
  const latest = await run(state.request);
  if (!latest || !before) return;
  const same = latest.text === before.text;
  latest.footer.textContent += same ? ", the same text" : ", ANOTHER TEXT: please report this";
  state.answer = latest;
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
images.listen($("attach"), $("files"), $("text"));
$("stop").addEventListener("click", () => state.reading?.abort());
$("again").addEventListener("click", again);
$("key").addEventListener("change", () => findModel().catch(show));
$("reset").addEventListener("click", () => {
  state.reading?.abort();
  state.turns = [];
  state.request = null;
  images.take();
  $("chat").replaceChildren();
  $("round").hidden = true;
  busy(false);
});

function show(error) {
  article("failed").textContent = error.message;
}

findModel().catch(show);
