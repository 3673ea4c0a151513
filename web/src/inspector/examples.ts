// Example texts.
import { countTokens } from "../api/client";

export const EXAMPLE = "The keeper of the lighthouse lit the lamp. The lamp of the lighthouse was lit by the keeper.";

// The server's limit for inspections.
const MOST_TOKENS = 512;

const NEEDLE = "The secret number of the lighthouse is 7413.";
const QUESTION = "What was the secret number of the lighthouse? The secret number of the lighthouse is";
const HAY = `In the morning the boats came home with little fish. A woman on the quay counted the baskets twice, and wrote
the sum on the back of a letter. Two children had found a rope, and argued whether it was older than the pier. The baker
opened late, because his oven had gone out in the storm. Nobody minded, for there was warm soup at the inn. A dog slept on
the steps of the chapel until the bells woke it. In the afternoon the wind turned, and smelled of hay and rain. The
schoolmaster read aloud from a book about the stars, and half of the class listened. An old sailor mended a net that he
would not use again. Somebody had painted the door of the harbour office green, and would not say why. The mail came by
bicycle, wet at the corners. Towards evening the fishermen drew lots for the night watch, and the youngest lost. The sea
was quiet then, and the sky had the colour of tin. From the hill one could see three islands, and on clear days a fourth.
A train went by beyond the marsh, with all of its windows lit. The innkeeper told the story of the wreck again, and it had
grown by two masts. Under the bridge the ducks had gone to sleep in a row.`.replace(/\n/g, " ").split(/(?<=\.) /);

// Returns a text with a needle near its beginning and a question at its end. As much filler as the server's limit
// allows lies between, so that the needle has left a window (LoLA's, say).
export async function needleText(model: string): Promise<string> {
  let text = "";
  for (const sentences of [HAY.length, 6, 3, 1]) {
    const [first, ...rest] = HAY.slice(0, sentences);
    text = [first, NEEDLE, ...rest, QUESTION].join(" ");
    if ((await countTokens(model, text)) <= MOST_TOKENS) break;
  }
  return text;
}
