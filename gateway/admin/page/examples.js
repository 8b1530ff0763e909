// What to try: questions that the built-in model answers, its nine tools, and questions for any other model.

const TEXT = { type: "string" }, NUMBER = { type: "integer" };
const tool = (name, description, properties) => ({
  type: "function",
  function: { name, description, parameters: { type: "object", properties, required: Object.keys(properties) } },
});

/** The tools that the built-in model is trained on. */
export const TOOLS = [
  tool("get_weather", "Get the weather in a city.", { city: TEXT }),
  tool("get_time", "Get the local time in a city.", { city: TEXT }),
  tool("add", "Add two numbers.", { a: NUMBER, b: NUMBER }),
  tool("set_timer", "Set a timer.", { minutes: NUMBER }),
  tool("search", "Search the web.", { query: TEXT }),
  tool("send_message", "Send a message to a person.", { to: TEXT, text: TEXT }),
  tool("translate", "Translate a word.", { text: TEXT, language: TEXT }),
  tool("convert", "Convert money.", { amount: NUMBER, from: TEXT, to: TEXT }),
  tool("get_contact", "Get the phone number of a person.", { name: TEXT }),
];

const RESULTS = {
  get_weather: '{"temperature": 18, "condition": "sunny"}',
  get_time: '{"time": "14:30"}',
  set_timer: '{"status": "ok"}',
  search: '["Red shoes", "Blue shoes"]',
  send_message: '{"status": "sent"}',
  translate: '{"translation": "Hallo"}',
  convert: '{"result": 92.5}',
  get_contact: '{"phone": "555-0142"}',
};

/** A result that the tool of a call might give. */
export function sampleResult({ name, arguments: given }) {
  if (name !== "add") return RESULTS[name] ?? "";
  try {
    const { a, b } = JSON.parse(given);
    return JSON.stringify({ result: a + b });
  } catch {
    return "";
  }
}

const BUILT_IN = {
  about: "A small demonstration model: it knows capitals, sums up to 20, a few facts, and nine tools. It is wrong about anything else.",
  tries: [
    { text: "What is the capital of Japan?" },
    { text: "What is 7 plus 8?" },
    { text: "What's the weather like in Paris today?", tools: true },
    { text: "Convert 100 USD to EUR, please.", tools: true },
    { text: "My name is Anna. What is my name?" },
    { text: "Hello! Who are you?" },
  ],
};
const ANY = {
  about: "",
  tries: [
    { text: "Explain in three sentences why the sky is blue." },
    { text: "Write a Python function that returns the n-th prime number, with a docstring." },
    { text: "Compare TCP and UDP in a table." },
    { text: "Write a limerick about a conductor who drops the baton." },
  ],
};

export function examplesOf(model) {
  return model === "baton-tiny" ? BUILT_IN : ANY;
}
