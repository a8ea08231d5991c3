// Material for MkDocs draws the diagrams with its own settings. On a narrow window a diagram keeps
// its size and scrolls in its box; shrunk to the window it could not be read.
const initialize = mermaid.initialize;
mermaid.initialize = (config) => {
  const useMaxWidth = window.innerWidth >= 960;
  const sized = (kind) => ({ ...config[kind], useMaxWidth });
  initialize({
    ...config,
    flowchart: sized("flowchart"),
    sequence: sized("sequence"),
    state: sized("state"),
  });
};
