// Material for MkDocs draws the diagrams with its own settings. These are narrower, so that a
// diagram that is shrunk to the window can still be read.
const initialize = mermaid.initialize;
const isNarrow = window.innerWidth < 960;
mermaid.initialize = (config) =>
  initialize({
    ...config,
    flowchart: {
      ...config.flowchart,
      nodeSpacing: isNarrow ? 6 : 14,
      rankSpacing: isNarrow ? 24 : 30,
      padding: isNarrow ? 4 : 8,
    },
    state: { ...config.state, nodeSpacing: 20, rankSpacing: 26 },
    sequence: {
      ...config.sequence,
      wrap: true,
      width: 112,
      actorMargin: 14,
      boxMargin: 4,
      diagramMarginX: 0,
      messageMargin: 24,
      noteMargin: 6,
      mirrorActors: false,
      actorFontSize: "13px",
      messageFontSize: "13px",
      noteFontSize: "12px",
    },
  });
