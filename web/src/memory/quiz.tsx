// Four questions on linear attention, with answers.
import { useState } from "preact/hooks";

interface Option {
  text: string;
  right?: boolean;
  reply: string;
}

interface Question {
  text: string;
  options: Option[];
  answer: string;
}

const QUESTIONS: Question[] = [
  {
    text: "What problem is linear attention fundamentally trying to address?",
    options: [
      { text: "The cost of interactions between the tokens of a long sequence", right: true, reply: "Yes." },
      { text: "That models have too many weights", reply: "It has about as many weights: what shrinks is the memory "
        + "per sequence and the work per token." },
      { text: "That softmax attention recalls too little", reply: "On the contrary: softmax attention is good at exact "
        + "recall." },
    ],
    answer: "It reduces the cost of sequence interaction, so that long contexts become more tractable in both memory "
      + "and computation.",
  },
  {
    text: "Why did early linear attention methods often underperform full attention?",
    options: [
      { text: "They ran in too narrow a number format", reply: "Formats matter, but float32 did not save them." },
      { text: "They could not be trained in parallel", reply: "They could: a sum over the past is easy to split "
        + "into chunks." },
      { text: "A compact state blurs single tokens of the past", right: true, reply: "Yes." },
    ],
    answer: "Summarising the history into a compact state can over-compress token-level information, which harms tasks "
      + "that need exact recall or fine-grained interactions.",
  },
  {
    text: "Why are hybrid stacks a natural engineering compromise?",
    options: [
      { text: "A few layers with full attention keep exact recall, the others keep memory small", right: true,
        reply: "Yes: move the slider of the hybrid above, and see what each such layer costs." },
      { text: "Two kinds of layers always train better than one", reply: "Not always; the point is what each is good "
        + "at." },
      { text: "Their memory does not grow at all", reply: "It does grow, with every layer that keeps keys and values: "
        + "see the third curve above." },
    ],
    answer: "Linear-style mechanisms help with efficiency, while full attention remains useful for exact, "
      + "high-resolution interactions. Together each can be used where it is most valuable.",
  },
  {
    text: "Why is it misleading to call one specific hybrid ratio the “production standard” today?",
    options: [
      { text: "Because ratios are trade secrets", reply: "Several are published, and they differ." },
      { text: "Because several recipes are being explored, and none is established for all", right: true,
        reply: "Yes." },
      { text: "Because every model must have half of each", reply: "Nothing says so; published ones have far less "
        + "full attention than that, or more." },
    ],
    answer: "The field is still exploring several recipes and trade-offs. Hybrid design is an emerging pattern, but "
      + "one exact formula has not been universally established.",
  },
];

export function Quiz() {
  return (
    <section class="quiz" aria-labelledby="quiz-title">
      <h2 id="quiz-title">Four questions</h2>
      {QUESTIONS.map((question, index) => <QuestionView key={index} number={index + 1} {...question} />)}
    </section>
  );
}

function QuestionView({ number, text, options, answer }: Question & { number: number }) {
  const [chosen, setChosen] = useState<Option | null>(null);
  return (
    <fieldset>
      <legend>{number}. {text}</legend>
      {options.map((option) => (
        <label key={option.text}>
          <input type="radio" name={`quiz-${number}`} checked={option === chosen} onChange={() => setChosen(option)} />
          {option.text}
        </label>
      ))}
      <div aria-live="polite">
        {chosen && <p class={`reply ${chosen.right ? "right" : "wrong"}`}>
          {chosen.right ? `${chosen.reply} ${answer}` : `Not quite. ${chosen.reply}`}
        </p>}
      </div>
    </fieldset>
  );
}
