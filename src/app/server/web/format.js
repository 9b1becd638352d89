/* format.js -- numbers as people read them. */

export const count = (n) => Math.round(n).toLocaleString('en-US');

export function seconds(ms) {
    if (ms < 9950) return `${(ms / 1000).toFixed(ms < 995 ? 2 : 1)} s`;
    if (ms < 59500) return `${Math.round(ms / 1000)} s`;
    const whole = Math.round(ms / 1000);
    return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

export function rate(perSecond) {
    return `${perSecond < 99.5 ? perSecond.toFixed(1) : count(perSecond)} tokens/s`;
}

export function bytes(n) {
    const units = ['B', 'KB', 'MB', 'GB', 'TB'];
    let at = 0;
    while (n >= 999.5 && at < units.length - 1) {
        n /= 1000;
        at++;
    }
    return `${n < 9.95 && at ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}

export const percent = (share) => `${Math.round(share * 100)}%`;

/* The heading under which a day belongs in a list. */
export function dayOf(time, now) {
    const midnight = new Date(now).setHours(0, 0, 0, 0);
    const day = 86400000;
    if (time >= midnight) return 'Today';
    if (time >= midnight - day) return 'Yesterday';
    if (time >= midnight - 7 * day) return 'Last week';
    return 'Earlier';
}
