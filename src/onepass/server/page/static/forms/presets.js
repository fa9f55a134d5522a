// Requests to begin with, each for the view that it belongs to.

import { EMPTY } from "./score_request.js";

const REVIEWS = [
  " It was a complete waste of time. Sentiment:",
  " The best movie I have seen this year! Sentiment:",
  " Boring, badly written and far too long. Sentiment:",
  " A wonderful film with brilliant acting. Sentiment:",
  " I loved every minute of it. Sentiment:",
  " I walked out after twenty minutes. Sentiment:",
];
const EXAMPLES =
  "Review: The food was delicious. Sentiment: positive. Review: The room was dirty and cold. Sentiment: negative. Review:";
const QUESTIONS = [
  { text: "Question: What do bees make?\nAnswer:", options: [" bricks and mortar", " honey", " rubber"] },
  { text: "Question: Which planet is called the Red Planet?\nAnswer:", options: [" Jupiter", " Mars", " the Moon"] },
];

export const PRESETS = [
  {
    title: "Sentiment",
    view: "score",
    state: { ...EMPTY, context: EXAMPLES, items: REVIEWS.join("\n"), labels: " positive\n negative", softmax: true },
  },
  {
    title: "Rerank",
    view: "rank",
    state: {
      query: "why does bread dough get bigger",
      documents: [
        "Iron combines with oxygen and turns into rust.",
        "Yeast eats sugar and gives off carbon dioxide, so that dough rises.",
        "The Moon pulls the oceans, and they rise and fall.",
        "Bread is sold by weight in many countries.",
      ].join("\n"),
      format: "lines",
      instruction: "",
      method: "auto",
      top: "",
    },
  },
  {
    title: "Multiple choice",
    view: "score",
    state: {
      ...EMPTY,
      context: "Answer the question.\n\n",
      items: JSON.stringify(QUESTIONS, null, 1),
      format: "json",
      read: "continuations",
    },
  },
  {
    title: "Judge",
    view: "score",
    state: {
      ...EMPTY,
      context: "Is this review positive? Reply Yes or No.\n\nReview: {item}",
      chat: true,
      items: "I loved every minute, thank you!\nA complete waste of time.\nIt was fine, I suppose.",
      labels: "Yes\nNo",
    },
  },
  {
    title: "Typed questions",
    view: "decide",
    state: {
      state: "My card was charged twice for one order!",
      candidates: "",
      questions: [
        { type: "predicate", instructions: "Is this urgent?", options: "" },
        { type: "choice", instructions: "Which team should handle it?", options: "billing\nshipping\nreturns" },
        { type: "score", instructions: "How upset is the customer?", options: "calm\nannoyed\nfurious" },
      ],
      permutations: "1",
      calibrated: true,
    },
  },
];
