/* theme.js -- light, dark, or as the system has it.
 *
 * Runs before the page is drawn, so that nothing flashes; hence no module.  The choice is an
 * attribute of the root element, which base.css turns into a colour scheme.
 */
'use strict';

(() => {
    const root = document.documentElement;
    const name = 'moxie-theme';
    let theme = null;
    try {
        theme = localStorage.getItem(name);
    } catch {
        /* a browser that keeps nothing has the system's theme */
    }
    if (theme === 'light' || theme === 'dark') root.dataset.theme = theme;

    window.moxieTheme = {
        get: () => root.dataset.theme || 'system',
        set: (next) => {
            if (next === 'system') delete root.dataset.theme;
            else root.dataset.theme = next;
            try {
                localStorage.setItem(name, next);
            } catch {
                /* as above */
            }
        },
    };
})();
