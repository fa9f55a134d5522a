// The list of views. A view is a module in views/ that calls registerView once; index.html loads every module of that
// folder and then app.js, which makes a tab per view in the order of `order`.
//
//   registerView({
//     name: "score",                // in links: #score
//     title: "Score",               // the tab
//     order: 10,                    // tabs go from small to large
//     summary: "…",                 // one sentence under the title
//     create(page) {                // called once, when the view is first opened
//       return {
//         element,                  // what <main> shows
//         state() {},               // optional: the form as plain JSON, for links and the history
//         restore(state) {},        // optional: fills the form from such a JSON
//         opened() {}, closed() {}, // optional: the tab was opened or left, such as to start and stop a timer
//       };
//     },
//   });
//
// `page` has what views share (app.js):
//   page.api.post(path, body, options), page.api.get(path)   requests with the key; they raise ApiError (requests/api.js)
//   page.requests            the requests of this tab, newest first (requests/history.js): last("/v1/score") is
//                            {view, state, path, body, response, milliseconds}; subscribe(listener) to hear of new ones
//   page.announce(text)      said to screen readers
//   page.open(name, state)   opens another view
//   page.formOf("score")     the form of a view as plain JSON; scoreBody (forms/score_request.js) makes a request of Score's
//   page.link(name, state)   a URL that opens the view with this form

const views = [];

export function registerView(view) {
  if (views.some((other) => other.name === view.name)) throw new Error(`two views are called ${view.name}`);
  views.push(view);
}

export function registeredViews() {
  return [...views].sort((a, b) => a.order - b.order);
}
