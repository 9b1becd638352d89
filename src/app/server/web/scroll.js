/* scroll.js -- keeps the end in view while an answer grows, for as long as the reader wants.
 *
 * Following stops the moment someone scrolls up, by whatever means, and resumes at the end.
 */
import { byId } from './dom.js';

const NEAR = 48; /* pixels from the end that still count as the end */

export class Follow {
    following = true;

    constructor() {
        this.scroller = byId('scroller');
        this.last = 0;
        this.scroller.addEventListener('scroll', () => this.scrolled(), { passive: true });
        byId('jump').addEventListener('click', () => {
            this.toEnd();
            this.scroller.focus(); /* the button goes */
        });
        new ResizeObserver(() => this.grown()).observe(byId('thread'));
        new ResizeObserver(() => this.grown()).observe(this.scroller);
    }

    distance() {
        const { scrollHeight, scrollTop, clientHeight } = this.scroller;
        return scrollHeight - scrollTop - clientHeight;
    }

    scrolled() {
        const top = this.scroller.scrollTop;
        /* Up, and not because the content became shorter. */
        if (top < this.last - 1 && this.distance() > 2) this.following = false;
        else if (this.distance() <= NEAR) this.following = true;
        this.last = top;
        this.showJump();
    }

    grown() {
        if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
        this.last = this.scroller.scrollTop;
        this.showJump();
    }

    toEnd() {
        this.following = true;
        this.grown();
    }

    showJump() {
        byId('jump').hidden = this.following || this.distance() <= NEAR;
    }
}
