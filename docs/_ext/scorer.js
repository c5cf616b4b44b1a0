// How the search ranks what it finds: titles and names that are the query, then those that have all of its words, then
// headings, and mentions last; among equals, pages of the guide before examples, and these before the reference.
var Scorer = (() => {
  const words = (text) => text.toLowerCase().split(/[^\p{Letter}\p{Number}_]+/u).filter(Boolean);
  const query = words(new URLSearchParams(window.location.search).get("q") || "");
  const last = ["changelog", "notes", "architecture", "contributing"];
  const place = (page) => {
    if (last.includes(page)) return 0;
    return page.startsWith("gallery/") ? 2 : page.includes("/") ? 1 : 3;
  };

  function score([page, title, , , , , kind]) {
    const stemmer = new Stemmer(); // its script comes after this one
    const stems = query.map((word) => stemmer.stemWord(word));
    const name = kind === "object" ? title.split(".").pop() : title.split(" > ").pop();
    const has = (text) => stems.length > 0
      && stems.every((stem, k) => [stem, query[k]].some((part) => text.toLowerCase().includes(part)));
    let tier = 0; // the query is mentioned, or in the name of a module or a class that this is part of
    if (words(name).join(" ") === query.join(" ")) tier = 4;
    else if (title.includes(" > ") && has(name)) tier = 1;
    else if (has(name) && words(name).some((word) => stems.includes(stemmer.stemWord(word)))) tier = 3;
    else if (has(name)) tier = 2;
    return 10 * tier + place(page);
  }

  // The rest is as Sphinx has it: it decides what is found.
  return {
    score, objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
    title: 15, partialTitle: 7, term: 5, partialTerm: 2,
  };
})();
