// Boxes that scroll sideways can be reached with the Tab key, and only those.
(() => {
  const fit = () => {
    for (const one of document.querySelectorAll("article pre, article table, article .table-wrapper")) {
      if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
      else one.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", fit);
  addEventListener("load", fit);
})();
